// The checks of a call: tensors against the problem and each other.
#include "validate.hpp"

#include <numeric>
#include <string>
#include <vector>

#include "checker.hpp"
#include "chunks.hpp"
#include "hash.hpp"
#include "shardloss/error.hpp"
#include "workspace.hpp"

namespace shardloss::detail {
namespace {

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
    for (const std::int64_t count : per_rank) rows.word = mix(rows.word, count);
    rows.word |= hashed_rows;
  }
  SHARDLOSS_REQUIRE(rows.group <= problem.max_rows,
                    "rows: the call brings " + std::to_string(rows.group) + ", max_rows is " +
                        std::to_string(problem.max_rows));
  return rows;
}

// Every entry is one of `rows` rows, and no other's. The CPU looks before it touches anything; on
// CUDA the values are not here to be read, and the kernels look.
void check_row_index(const ConstTensor& index, std::int64_t rows) {
  const auto* entries = static_cast<const std::int64_t*>(index.data());
  std::vector<bool> named(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < index.size(0); ++i) {
    const std::int64_t row = entries[i];
    const auto found = [&] {
      return "row_index[" + std::to_string(i) + "] is " + std::to_string(row);
    };
    SHARDLOSS_REQUIRE(row >= 0 && row < rows,
                      found() + ", wanted a row of 0 .. " + std::to_string(rows - 1));
    SHARDLOSS_REQUIRE(!named[static_cast<std::size_t>(row)], found() + ", which it names twice");
    named[static_cast<std::size_t>(row)] = true;
  }
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
    if (checker.on_host()) check_row_index(in.row_index, call.hidden_rows);
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

void check_overlaps(const Plan& plan, Checker& checker, const Call& call) {
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
  if (call.saved != nullptr)
    checker.memory("saved", call.saved->memory, plan.saved_bytes,
                   call.operation == Operation::forward);
  checker.memory("workspace", call.workspace, plan.workspace_bytes, true);
}

void check_stream(Device device, Stream stream) {
  SHARDLOSS_REQUIRE(device.kind == DeviceKind::cpu || stream.handle != nullptr,
                    "stream: null; the default stream would order all others behind the pass");
}

// What forward left against what backward brings.
void check_rows_of_saved(Call& call) {
  if (call.operation != Operation::backward) return;
  SHARDLOSS_REQUIRE(call.saved->group_rows >= 0, "saved: no forward has filled it");
  SHARDLOSS_REQUIRE(call.saved->group_rows == call.group_rows,
                    "saved: holds " + std::to_string(call.saved->group_rows) +
                        " rows, the call brings " + std::to_string(call.group_rows));
  SHARDLOSS_REQUIRE(call.saved->rows_word == call.rows_word,
                    "saved: was filled under other rows_per_rank");
  call.saved_word = call.saved->call;
}

}  // namespace

void check_saved(const Call& call, std::uint64_t loss, Device device) {
  if (!call.saves) return;
  SHARDLOSS_REQUIRE(call.saved != nullptr, "saved: was moved from");
  SHARDLOSS_REQUIRE(call.saved->device == device, "saved: was made on another device");
  SHARDLOSS_REQUIRE(call.saved->loss == loss, "saved: was made by another Loss");
}

void validate_call(const Problem& problem, const Plan& plan, Device device, Call& call) {
  Checker checker(problem.dtype, device);
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
  check_overlaps(plan, checker, call);
  check_rows_of_saved(call);
  if (call.saved != nullptr) call.outputs_word |= output_saved;
  call.chunks = gathers_rows(problem, plan)
                    ? cut_group_rows(call.in->rows_per_rank, plan.chunk_rows, plan.slots, plan.rank)
                    : cut_rows(call.rows, plan.chunk_rows, plan.slots);
}

void validate_denominator(const Problem& problem, Device device, const Tensor& total, Call& call) {
  Checker checker(problem.dtype, device);
  check_stream(device, call.stream);
  if (problem.soft_targets) {
    SHARDLOSS_REQUIRE(call.in->hidden.dims() == 2,
                      "hidden: found " + to_string(call.in->hidden) + ", wanted a matrix");
    call.hidden_rows = call.in->hidden.size(0);
  } else {
    SHARDLOSS_REQUIRE(call.in->targets.dims() == 1,
                      "targets: found " + to_string(call.in->targets) + ", wanted a vector");
    call.hidden_rows = call.in->targets.size(0);
  }
  check_targets(problem, checker, call);
  checker.check("total", total, {{checker.real()}, 0});
}

void validate_embed_call(const Problem& problem, const Plan& plan, Device device,
                         std::span<const std::int64_t> rows_per_rank, EmbedCall& call) {
  Checker checker(problem.dtype, device);
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
