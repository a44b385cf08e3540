// All argument checks of the library.
#include "validate.hpp"

#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "chunks.hpp"
#include "shardloss/error.hpp"
#include "workspace.hpp"

namespace shardloss::detail {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, text);
}

// The argument check macro of the library: a condition, and a text with both sides.
#define SHARDLOSS_REQUIRE(condition, text) \
  do {                                     \
    if (!(condition)) refuse(text);        \
  } while (false)

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void validate_sizes(const Problem& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  SHARDLOSS_REQUIRE(p.max_rows >= 0, "max_rows is " + std::to_string(p.max_rows));
  SHARDLOSS_REQUIRE(p.hidden >= 1 && p.hidden <= most,
                    "hidden is " + std::to_string(p.hidden) + ", wanted 1 .. 2^31 - 1");
  SHARDLOSS_REQUIRE(p.vocab >= 1 && p.vocab <= most,
                    "vocab is " + std::to_string(p.vocab) + ", wanted 1 .. 2^31 - 1");
  SHARDLOSS_REQUIRE(p.vocab_padded == 0 || (p.vocab_padded >= p.vocab && p.vocab_padded <= most),
                    "vocab_padded is " + std::to_string(p.vocab_padded) + ", vocab is " +
                        std::to_string(p.vocab));
  SHARDLOSS_REQUIRE(p.keep_logits >= 0, "keep_logits is " + std::to_string(p.keep_logits));
  SHARDLOSS_REQUIRE(p.chunking.rule == Chunking::Rule::automatic || p.chunking.value >= 1,
                    "chunking " + std::string(name(p.chunking.rule)) + " has the value " +
                        std::to_string(p.chunking.value) + ", wanted at least 1");
}

void validate_objective(const Problem& p) {
  SHARDLOSS_REQUIRE(!(p.reduction == Reduction::none && p.normalizer),
                    "normalizer with reduction none: there is no sum that it could divide");
  SHARDLOSS_REQUIRE(std::isfinite(p.logit_scale), "logit_scale is " + number(p.logit_scale));
  SHARDLOSS_REQUIRE(std::isfinite(p.softcap) && p.softcap >= 0,
                    "softcap is " + number(p.softcap) + ", wanted >= 0");
  SHARDLOSS_REQUIRE(std::isfinite(p.z_loss), "z_loss is " + number(p.z_loss));
  SHARDLOSS_REQUIRE(p.label_smoothing >= 0 && p.label_smoothing <= 1,
                    "label_smoothing is " + number(p.label_smoothing) + ", wanted 0 .. 1");
  if (p.label_smoothing_form == SmoothingForm::megatron && p.label_smoothing > 0) {
    const double vocab = static_cast<double>(p.vocab);
    SHARDLOSS_REQUIRE(p.vocab > 1,
                      "label_smoothing_form megatron needs a vocab of at least 2, found 1");
    SHARDLOSS_REQUIRE(p.label_smoothing * vocab / (vocab - 1) <= 1,
                      "label_smoothing " + number(p.label_smoothing) +
                          " in megatron's form is more than 1 for vocab " +
                          std::to_string(p.vocab));
  }
}

std::string stride_text(const ConstTensor& t) {
  return "strides [" + std::to_string(t.stride(0)) + ", " + std::to_string(t.stride(1)) + "]";
}

// What a tensor of a call may be.
struct Wanted {
  std::vector<DType> dtypes;
  int dims = 0;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

std::string to_text(const Wanted& wanted) {
  std::string text;
  for (const DType dtype : wanted.dtypes)
    text += (text.empty() ? "" : " or ") + std::string(name(dtype));
  if (wanted.dims == 0) return text + " scalar";
  text += " [" + std::to_string(wanted.rows);
  if (wanted.dims == 2) text += ", " + std::to_string(wanted.columns);
  return text + "]";
}

class Checker {
 public:
  Checker(const Problem& problem, const Plan& plan, Device device)
      : problem_(problem), plan_(plan), device_(device) {}

  DType real() const { return problem_.dtype == DType::float64 ? DType::float64 : DType::float32; }

  void check(const char* label, const ConstTensor& t, const Wanted& wanted) const {
    bool fits = t.dims() == wanted.dims;
    if (fits && wanted.dims >= 1) fits = t.size(0) == wanted.rows;
    if (fits && wanted.dims == 2) fits = t.size(1) == wanted.columns;
    bool known = false;
    for (const DType dtype : wanted.dtypes) known = known || t.dtype() == dtype;
    SHARDLOSS_REQUIRE(t.given() && fits && known, std::string(label) + ": found " + to_string(t) +
                                                      ", wanted " + to_text(wanted));
    SHARDLOSS_REQUIRE(t.device() == device_,
                      std::string(label) + ": found " + to_string(t) + ", the loss runs on " +
                          std::string(name(device_.kind)) + ":" + std::to_string(device_.index));
    const bool empty = wanted.dims >= 1 && (wanted.rows == 0 || wanted.columns == 0);
    SHARDLOSS_REQUIRE(empty || t.data() != nullptr,
                      std::string(label) + ": null data in " + to_string(t));
  }

  // A matrix whose rows are dense.
  void check_matrix(const char* label, const ConstTensor& t, const Wanted& wanted) const {
    check(label, t, wanted);
    SHARDLOSS_REQUIRE(wanted.columns <= 1 || t.stride(1) == 1,
                      std::string(label) + ": " + stride_text(t) + ", wanted a column stride of 1");
    SHARDLOSS_REQUIRE(wanted.rows <= 1 || t.stride(0) >= wanted.columns,
                      std::string(label) + ": " + stride_text(t) +
                          ", wanted a row stride of at least " + std::to_string(wanted.columns));
  }

  void check_dense(const char* label, const ConstTensor& t, const Wanted& wanted) const {
    check(label, t, wanted);
    SHARDLOSS_REQUIRE(
        wanted.rows <= 1 || t.stride(0) == 1,
        std::string(label) + ": stride " + std::to_string(t.stride(0)) + ", wanted 1");
  }

  // Absent unless the problem announces it; present where it does.
  bool announced(const char* label, const ConstTensor& t, bool option) const {
    SHARDLOSS_REQUIRE(t.given() == option,
                      std::string(label) + (option ? ": not given, but the problem has it"
                                                   : ": given, but the problem has none"));
    return option;
  }

  // Keeps a written range, and refuses it where it meets one kept before.
  void output(const char* label, const ConstTensor& t) { keep(label, t, true); }
  void input(const char* label, const ConstTensor& t) { keep(label, t, false); }

 private:
  struct Range {
    const char* label;
    bool written;
    std::uintptr_t begin, end;   // bytes
    std::int64_t stride, width;  // bytes from one run to the next, bytes of a run
  };

  static Range range_of(const char* label, const ConstTensor& t, bool written) {
    const auto each = static_cast<std::int64_t>(size_of(t.dtype()));
    const std::int64_t width = t.dims() == 2 ? t.size(1) * each : each;
    const std::int64_t stride = t.dims() == 0 ? width : std::abs(t.stride(0)) * each;
    const std::int64_t runs = t.dims() == 0 ? 1 : t.size(0);
    auto begin = reinterpret_cast<std::uintptr_t>(t.data());
    const auto reach = static_cast<std::uintptr_t>((runs - 1) * stride);
    if (t.dims() != 0 && t.stride(0) < 0) begin -= reach;
    return {label,  written, begin, begin + reach + static_cast<std::uintptr_t>(width),
            stride, width};
  }

  static bool overlap(const Range& a, const Range& b) {
    if (a.begin >= b.end || b.begin >= a.end) return false;
    if (a.stride != b.stride || a.stride < a.width || a.stride < b.width) return true;
    // Same stride: interleaved columns of one matrix do not meet.
    const auto stride = static_cast<std::uintptr_t>(a.stride);
    const std::uintptr_t ahead = (b.begin % stride + stride - a.begin % stride) % stride;
    return ahead < static_cast<std::uintptr_t>(a.width) ||
           stride - ahead < static_cast<std::uintptr_t>(b.width);
  }

  void keep(const char* label, const ConstTensor& t, bool written) {
    if (!t.given() || (t.dims() >= 1 && t.size(0) == 0) || (t.dims() == 2 && t.size(1) == 0))
      return;
    SHARDLOSS_REQUIRE(!written || t.dims() == 0 || t.size(0) <= 1 || t.stride(0) != 0,
                      std::string(label) + ": an output with stride 0");
    const Range range = range_of(label, t, written);
    for (const Range& other : ranges_) {
      SHARDLOSS_REQUIRE(!(range.written || other.written) || !overlap(range, other),
                        std::string(label) + " overlaps " + other.label);
    }
    ranges_.push_back(range);
  }

  const Problem& problem_;
  const Plan& plan_;
  Device device_;
  std::vector<Range> ranges_;
};

std::uint64_t mix(std::uint64_t value) {  // splitmix64's finaliser
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9ULL;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Rows of this rank and of the group, and the word by which ranks agree on them.
struct Rows {
  std::int64_t own = 0;
  std::int64_t group = 0;
  std::int64_t first = 0;
  std::uint64_t word = 0;
};

Rows count_rows(const Problem& problem, const Plan& plan, std::int64_t own,
                std::span<const std::int64_t> per_rank) {
  Rows rows{own, own, 0, static_cast<std::uint64_t>(own)};
  if (problem.layout == Layout::replicated) {
    SHARDLOSS_REQUIRE(per_rank.empty(), "rows_per_rank: given, but the layout is replicated");
  } else {
    SHARDLOSS_REQUIRE(static_cast<int>(per_rank.size()) == plan.ranks,
                      "rows_per_rank: found " + std::to_string(per_rank.size()) +
                          " counts, wanted one for each of " + std::to_string(plan.ranks) +
                          " ranks");
    for (const std::int64_t count : per_rank)
      SHARDLOSS_REQUIRE(count >= 0, "rows_per_rank: a count is negative");
    const auto rank = static_cast<std::size_t>(plan.rank);
    SHARDLOSS_REQUIRE(per_rank[rank] == own, "rows_per_rank[" + std::to_string(rank) + "] is " +
                                                 std::to_string(per_rank[rank]) +
                                                 ", this rank brings " + std::to_string(own) +
                                                 " rows");
    rows.group = std::accumulate(per_rank.begin(), per_rank.end(), std::int64_t{0});
    rows.first = std::accumulate(per_rank.begin(), per_rank.begin() + plan.rank, std::int64_t{0});
    rows.word = 0;
    for (const std::int64_t count : per_rank)
      rows.word = mix(rows.word + static_cast<std::uint64_t>(count) + 1);
  }
  SHARDLOSS_REQUIRE(rows.group <= problem.max_rows,
                    "rows: the call brings " + std::to_string(rows.group) + ", max_rows is " +
                        std::to_string(problem.max_rows));
  return rows;
}

// Rows, targets and their weights; call.hidden_rows is known.
void check_targets(const Problem& problem, const Checker& checker, Call& call) {
  const Inputs& in = *call.in;
  const DType real = checker.real();
  call.rows = call.hidden_rows;
  if (in.row_index.given()) {
    SHARDLOSS_REQUIRE(problem.row_index, "row_index: given, but the problem has none");
    call.rows = in.row_index.dims() == 1 ? in.row_index.size(0) : -1;
    checker.check_dense("row_index", in.row_index, {{DType::int64}, 1, call.rows});
    SHARDLOSS_REQUIRE(call.rows <= call.hidden_rows, "row_index: names " +
                                                         std::to_string(call.rows) + " rows of " +
                                                         std::to_string(call.hidden_rows));
  }
  if (checker.announced("soft_targets", in.soft_targets, problem.soft_targets)) {
    SHARDLOSS_REQUIRE(!in.targets.given(), "targets: given beside soft_targets");
    SHARDLOSS_REQUIRE(problem.layout == Layout::replicated || !in.row_index.given(),
                      "row_index with soft_targets: not defined for row_sharded");
  } else {
    checker.check("targets", in.targets, {{DType::int32, DType::int64}, 1, call.hidden_rows});
  }
  if (in.token_weights.given())
    checker.check("token_weights", in.token_weights, {{real}, 1, call.hidden_rows});
  if (checker.announced("class_weights", in.class_weights, problem.class_weights)) {
    checker.check_dense("class_weights", in.class_weights, {{real}, 1, problem.vocab});
  }
}

void check_inputs(const Problem& problem, const Plan& plan, Checker& checker, Call& call) {
  const Inputs& in = *call.in;
  const DType real = checker.real();
  SHARDLOSS_REQUIRE(in.hidden.given() && in.hidden.dims() == 2,
                    "hidden: found " + to_string(in.hidden) + ", wanted a matrix [rows, " +
                        std::to_string(problem.hidden) + "]");
  call.hidden_rows = in.hidden.size(0);
  checker.check_matrix("hidden", in.hidden, {{problem.dtype}, 2, call.hidden_rows, problem.hidden});
  checker.check_matrix("weight", in.weight, {{problem.dtype}, 2, plan.shard.width, problem.hidden});
  if (checker.announced("bias", in.bias, problem.bias)) {
    checker.check_dense("bias", in.bias, {{problem.dtype}, 1, plan.shard.width});
  }
  check_targets(problem, checker, call);
  if (checker.announced("normalizer", in.normalizer, problem.normalizer)) {
    checker.check("normalizer", in.normalizer, {{real}, 0});
  }
}

void check_soft_targets(const Problem& problem, const Plan& plan, const Checker& checker,
                        const Call& call) {
  if (!problem.soft_targets) return;
  const std::int64_t rows =
      problem.layout == Layout::replicated ? call.hidden_rows : call.group_rows;
  checker.check_matrix("soft_targets", call.in->soft_targets,
                       {{checker.real(), problem.dtype}, 2, rows, plan.shard.width});
}

void check_outputs(const Problem& problem, Checker& checker, Call& call) {
  const Outputs& out = *call.out;
  const DType real = checker.real();
  const std::int64_t rows = call.hidden_rows;
  std::uint64_t& word = call.outputs_word;
  const auto one = [&](const char* label, const Tensor& t, const Wanted& wanted,
                       std::uint64_t bit) {
    if (!t.given()) return;
    checker.check(label, t, wanted);
    word |= bit;
  };
  const int loss_dims = problem.reduction == Reduction::none ? 1 : 0;
  one("loss", out.loss, {{real}, loss_dims, loss_dims == 1 ? rows : 1}, output_loss);
  one("row_loss", out.row_loss, {{real}, 1, rows}, output_row_loss);
  one("lse", out.lse, {{real}, 1, rows}, output_lse);
  one("target_logprob", out.target_logprob, {{real}, 1, rows}, output_logprob);
  one("entropy", out.entropy, {{real}, 1, rows}, output_entropy);
  one("argmax", out.argmax, {{DType::int64}, 1, rows}, output_argmax);
  one("correct", out.correct, {{DType::uint8}, 1, rows}, output_correct);
  one("counted_rows", out.counted_rows, {{DType::int64}, 0}, output_counted);
  one("cross_entropy", out.cross_entropy, {{real}, 0}, output_parts);
  one("z_loss", out.z_loss, {{real}, 0}, output_parts);
  SHARDLOSS_REQUIRE(!out.entropy.given() || problem.entropy,
                    "entropy: asked for, but the problem has none");
  SHARDLOSS_REQUIRE(!problem.soft_targets || (!out.target_logprob.given() && !out.correct.given()),
                    "target_logprob and correct do not exist with soft_targets");
}

void check_upstream(const char* label, const ConstTensor& t, const Checker& checker,
                    std::int64_t rows) {
  if (!t.given()) return;
  if (t.dims() == 0) {
    checker.check(label, t, {{checker.real()}, 0});
  } else {
    checker.check(label, t, {{checker.real()}, 1, rows});
  }
}

void check_upstreams(const Problem& problem, const Checker& checker, const Call& call) {
  const Upstreams& up = *call.up;
  check_upstream("upstream of loss", up.loss, checker, call.hidden_rows);
  check_upstream("upstream of lse", up.lse, checker, call.hidden_rows);
  check_upstream("upstream of target_logprob", up.target_logprob, checker, call.hidden_rows);
  check_upstream("upstream of entropy", up.entropy, checker, call.hidden_rows);
  SHARDLOSS_REQUIRE(problem.reduction == Reduction::none || up.loss.dims() == 0,
                    "upstream of loss: found " + to_string(up.loss) + ", the loss is a scalar");
  SHARDLOSS_REQUIRE(!up.entropy.given() || problem.entropy,
                    "upstream of entropy: given, but the problem has none");
  SHARDLOSS_REQUIRE(!problem.soft_targets || !up.target_logprob.given(),
                    "upstream of target_logprob: it does not exist with soft_targets");
}

void check_gradients(const Problem& problem, const Plan& plan, Checker& checker, Call& call) {
  const Gradients& grad = *call.grad;
  if (grad.hidden.given()) {
    SHARDLOSS_REQUIRE(problem.grad_hidden != GradDType::none,
                      "gradient of hidden: asked for, the problem has none");
    checker.check_matrix(
        "gradient of hidden", grad.hidden,
        {{grad_dtype(problem.grad_hidden, problem.dtype)}, 2, call.hidden_rows, problem.hidden});
    call.outputs_word |= output_grad_hidden;
  }
  const DType weight_dtype = grad_dtype(problem.grad_weight, problem.dtype);
  SHARDLOSS_REQUIRE(
      (!grad.weight.given() && !grad.bias.given()) || problem.grad_weight != GradDType::none,
      "gradient of weight or bias: asked for, the problem has none");
  if (grad.weight.given()) {
    checker.check_matrix("gradient of weight", grad.weight,
                         {{weight_dtype}, 2, plan.shard.width, problem.hidden});
  }
  if (grad.bias.given()) {
    SHARDLOSS_REQUIRE(problem.bias, "gradient of bias: asked for, the problem has no bias");
    checker.check_dense("gradient of bias", grad.bias, {{weight_dtype}, 1, plan.shard.width});
  }
}

void check_overlaps(Checker& checker, const Call& call) {
  const Inputs& in = *call.in;
  const Outputs& out = *call.out;
  checker.input("hidden", in.hidden);
  checker.input("weight", in.weight);
  checker.input("bias", in.bias);
  checker.input("targets", in.targets);
  checker.input("soft_targets", in.soft_targets);
  checker.input("token_weights", in.token_weights);
  checker.input("class_weights", in.class_weights);
  checker.input("normalizer", in.normalizer);
  checker.input("row_index", in.row_index);
  checker.input("upstream of loss", call.up->loss);
  checker.input("upstream of lse", call.up->lse);
  checker.input("upstream of target_logprob", call.up->target_logprob);
  checker.input("upstream of entropy", call.up->entropy);
  checker.output("loss", out.loss);
  checker.output("row_loss", out.row_loss);
  checker.output("lse", out.lse);
  checker.output("target_logprob", out.target_logprob);
  checker.output("entropy", out.entropy);
  checker.output("argmax", out.argmax);
  checker.output("correct", out.correct);
  checker.output("counted_rows", out.counted_rows);
  checker.output("cross_entropy", out.cross_entropy);
  checker.output("z_loss", out.z_loss);
  checker.output("gradient of hidden", call.grad->hidden);
  checker.output("gradient of weight", call.grad->weight);
  checker.output("gradient of bias", call.grad->bias);
}

void check_stream(Device device, Stream stream) {
  SHARDLOSS_REQUIRE(device.kind == DeviceKind::cpu || stream.handle != nullptr,
                    "stream: null; the default stream would order all others behind the pass");
}

void check_saved(const Call& call, Device device) {
  if (call.saved == nullptr) {
    SHARDLOSS_REQUIRE(call.operation != Operation::backward, "saved: not given");
    return;
  }
  SHARDLOSS_REQUIRE(call.saved->device == device, "saved: was made on another device");
  if (call.operation != Operation::backward) return;
  SHARDLOSS_REQUIRE(call.saved->group_rows >= 0, "saved: no forward has filled it");
  SHARDLOSS_REQUIRE(
      call.saved->group_rows == call.group_rows && call.saved->rows_word == call.rows_word,
      "saved: holds " + std::to_string(call.saved->group_rows) + " rows, the call brings " +
          std::to_string(call.group_rows));
}

}  // namespace

void validate_problem(const Problem& problem, DeviceKind device) {
  validate_sizes(problem);
  SHARDLOSS_REQUIRE(is_floating(problem.dtype), "dtype is " + std::string(name(problem.dtype)));
  SHARDLOSS_REQUIRE(problem.dtype != DType::float64 || device == DeviceKind::cpu,
                    "dtype is float64, which the CPU backend alone computes");
  validate_objective(problem);
}

void validate_call(const Problem& problem, const Plan& plan, Device device, Call& call) {
  Checker checker(problem, plan, device);
  check_stream(device, call.stream);
  check_inputs(problem, plan, checker, call);
  const Rows rows = count_rows(problem, plan, call.rows, call.in->rows_per_rank);
  call.group_rows = rows.group;
  call.group_first = rows.first;
  call.rows_word = rows.word;
  check_soft_targets(problem, plan, checker, call);
  check_outputs(problem, checker, call);
  check_upstreams(problem, checker, call);
  check_gradients(problem, plan, checker, call);
  check_overlaps(checker, call);
  check_saved(call, device);
  if (call.saved != nullptr) call.outputs_word |= output_saved;
  call.chunks = gathers_rows(problem, plan)
                    ? cut_group_rows(call.in->rows_per_rank, plan.chunk_rows, plan.slots, plan.rank)
                    : cut_rows(call.rows, plan.chunk_rows, plan.slots);
}

void validate_denominator(const Problem& problem, const Plan& plan, Device device,
                          const Tensor& total, Call& call) {
  Checker checker(problem, plan, device);
  check_stream(device, call.stream);
  SHARDLOSS_REQUIRE(!problem.soft_targets,
                    "add_denominator: soft targets divide by the sum of token weights");
  SHARDLOSS_REQUIRE(call.in->targets.dims() == 1,
                    "targets: found " + to_string(call.in->targets) + ", wanted a vector");
  call.hidden_rows = call.in->targets.size(0);
  check_targets(problem, checker, call);
  checker.check("total", total, {{checker.real()}, 0});
}

void validate_embed_call(const Problem& problem, const Plan& plan, Device device,
                         std::span<const std::int64_t> rows_per_rank, EmbedCall& call) {
  Checker checker(problem, plan, device);
  check_stream(device, call.stream);
  SHARDLOSS_REQUIRE(call.ids.given() && call.ids.dims() == 1,
                    "ids: found " + to_string(call.ids) + ", wanted a vector");
  call.rows = call.ids.size(0);
  checker.check("ids", call.ids, {{DType::int32, DType::int64}, 1, call.rows});
  checker.input("ids", call.ids);
  if (call.operation == Operation::embed) {
    checker.check_matrix("weight", call.weight,
                         {{problem.dtype}, 2, plan.shard.width, problem.hidden});
    checker.check_matrix("output", call.output, {{problem.dtype}, 2, call.rows, problem.hidden});
    checker.input("weight", call.weight);
    checker.output("output", call.output);
  } else {
    SHARDLOSS_REQUIRE(problem.grad_weight != GradDType::none,
                      "gradient of weight: asked for, the problem has none");
    checker.check_matrix("gradient of output", call.grad_output,
                         {{problem.dtype}, 2, call.rows, problem.hidden});
    checker.check_matrix(
        "gradient of weight", call.grad_weight,
        {{grad_dtype(problem.grad_weight, problem.dtype)}, 2, plan.shard.width, problem.hidden});
    checker.input("gradient of output", call.grad_output);
    checker.output("gradient of weight", call.grad_weight);
  }
  const Rows rows = count_rows(problem, plan, call.rows, rows_per_rank);
  call.group_rows = rows.group;
  call.group_first = rows.first;
  call.rows_word = rows.word;
  call.chunks = gathers_rows(problem, plan)
                    ? cut_group_rows(rows_per_rank, plan.chunk_rows, plan.slots, plan.rank)
                    : cut_rows(call.rows, plan.chunk_rows, plan.slots);
}

}  // namespace shardloss::detail
