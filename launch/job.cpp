#include "job.hpp"

#include <chrono>

#include "convert.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

/// Fresh contents: what is added to, or NaN.
void prepare(HostArray& array, const HostArray& before) {
  if (!array.given()) return;
  if (before.given())
    convert(before.data(), before.dtype(), array.mutable_data(), array.dtype(), array.elements());
  else
    array.poison();
}

}  // namespace

Job::Job(const Loss& loss, const Share& share, Way way, Answers answers)
    : loss_(loss), share_(share), way_(way), staging_(loss.device()) {
  make_results(answers);
  const Share& s = share_;
  inputs_.hidden = staging_.in(s.hidden);
  inputs_.weight = staging_.in(s.weight);
  inputs_.bias = staging_.in(s.bias);
  inputs_.targets = staging_.in(s.targets);
  inputs_.soft_targets = staging_.in(s.soft_targets);
  inputs_.token_weights = staging_.in(s.token_weights);
  inputs_.class_weights = staging_.in(s.class_weights);
  inputs_.normalizer = staging_.in(s.normalizer);
  inputs_.row_index = staging_.in(s.row_index);
  inputs_.rows_per_rank = s.rows_per_rank;
  upstreams_.loss = staging_.in(s.upstream);
  upstreams_.lse = staging_.in(s.upstream_lse);
  upstreams_.target_logprob = staging_.in(s.upstream_logprob);
  upstreams_.entropy = staging_.in(s.upstream_entropy);
  Results& r = results_;
  outputs_.loss = staging_.out(r.loss);
  outputs_.row_loss = staging_.out(r.row_loss);
  outputs_.lse = staging_.out(r.lse);
  outputs_.target_logprob = staging_.out(r.target_logprob);
  outputs_.entropy = staging_.out(r.entropy);
  outputs_.argmax = staging_.out(r.argmax);
  outputs_.correct = staging_.out(r.correct);
  outputs_.counted_rows = staging_.out(r.counted_rows);
  outputs_.cross_entropy = staging_.out(r.cross_entropy);
  outputs_.z_loss = staging_.out(r.z_loss);
  gradients_.hidden = staging_.out(r.grad_hidden);
  gradients_.weight = staging_.out(r.grad_weight);
  gradients_.bias = staging_.out(r.grad_bias);
  gradients_.accumulate_hidden = s.before_hidden.given();
  gradients_.accumulate_weight = s.before_weight.given();
  gradients_.accumulate_bias = s.before_bias.given();
  if (way_ == Way::two_step) saved_.emplace(loss_.make_saved());
}

void Job::make_results(Answers answers) {
  const Problem& p = share_.problem;
  const DType real = real_of(p);
  const std::vector<std::int64_t> rows = {share_.rows};
  Results& r = results_;
  r.loss = HostArray(real, p.reduction == Reduction::none ? rows : std::vector<std::int64_t>{});
  r.lse = HostArray(real, rows);
  const bool all = answers == Answers::all;
  if (all ? !p.soft_targets : share_.upstream_logprob.given())
    r.target_logprob = HostArray(real, rows);
  if (all ? p.entropy : share_.upstream_entropy.given()) r.entropy = HostArray(real, rows);
  if (all) {
    r.row_loss = HostArray(real, rows);
    r.argmax = HostArray(DType::int64, rows);
    if (!p.soft_targets) r.correct = HostArray(DType::uint8, rows);
    r.counted_rows = HostArray(DType::int64, {});
    r.cross_entropy = HostArray(real, {});
    r.z_loss = HostArray(real, {});
  }
  if (p.grad_hidden != GradDType::none)
    r.grad_hidden = HostArray(grad_dtype(p.grad_hidden, p.dtype), {share_.rows, p.hidden});
  if (p.grad_weight == GradDType::none) return;
  const DType dtype = grad_dtype(p.grad_weight, p.dtype);
  r.grad_weight = HostArray(dtype, {share_.shard.width, p.hidden});
  if (p.bias) r.grad_bias = HostArray(dtype, {share_.shard.width});
}

std::optional<std::string> Job::run() {
  Results& r = results_;
  for (HostArray* array : {&r.loss, &r.row_loss, &r.lse, &r.target_logprob, &r.entropy, &r.argmax,
                           &r.correct, &r.counted_rows, &r.cross_entropy, &r.z_loss})
    prepare(*array, {});
  prepare(r.grad_hidden, share_.before_hidden);
  prepare(r.grad_weight, share_.before_weight);
  prepare(r.grad_bias, share_.before_bias);
  staging_.refill();
  staging_.synchronize();
  invalid_.reset();
  const auto start = std::chrono::steady_clock::now();
  call();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  staging_.fetch();
  return invalid_;
}

void Job::enqueue() {
  const Execution on{.stream = staging_.stream(), .workspace = nullptr, .workspace_bytes = 0};
  if (way_ == Way::fused) {
    loss_.forward_backward(inputs_, outputs_, upstreams_, gradients_, on);
    return;
  }
  loss_.forward(inputs_, outputs_, &*saved_, on);
  loss_.backward(inputs_, *saved_, upstreams_, gradients_, on);
}

void Job::call() {
  const Execution on{.stream = staging_.stream(), .workspace = nullptr, .workspace_bytes = 0};
  // The outputs are complete when a target was invalid, so the second step still makes sense.
  const auto keep_invalid = [&](auto&& step) {
    try {
      step();
      loss_.wait(on.stream);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_target) throw;
      invalid_ = error.what();
    }
  };
  if (way_ == Way::fused) {
    keep_invalid([&] { loss_.forward_backward(inputs_, outputs_, upstreams_, gradients_, on); });
    return;
  }
  keep_invalid([&] { loss_.forward(inputs_, outputs_, &*saved_, on); });
  keep_invalid([&] { loss_.backward(inputs_, *saved_, upstreams_, gradients_, on); });
}

std::vector<Piece> pieces(const Results& results, const Share& share) {
  std::vector<Piece> out;
  const bool replicated = share.problem.layout == Layout::replicated;
  const bool writer = !replicated || share.rank == 0;
  const auto by_rows = [&](const char* name, const HostArray& array) {
    if (!array.given()) return;
    std::vector<std::int64_t> whole = array.shape();
    whole[0] = share.total_rows;
    out.push_back({name, &array, whole, share.first_row * array.columns(),
                   writer ? array.elements() : 0, replicated});
  };
  const auto scalar = [&](const char* name, const HostArray& array) {
    if (array.given()) out.push_back({name, &array, {}, 0, share.rank == 0 ? 1 : 0, true});
  };
  const auto by_vocab = [&](const char* name, const HostArray& array) {
    if (!array.given()) return;
    std::vector<std::int64_t> whole = array.shape();
    whole[0] = share.problem.vocab_padded;
    out.push_back(
        {name, &array, whole, share.shard.first * array.columns(), array.elements(), false});
  };
  if (share.problem.reduction == Reduction::none)
    by_rows("loss", results.loss);
  else
    scalar("loss", results.loss);
  by_rows("row_loss", results.row_loss);
  by_rows("lse", results.lse);
  by_rows("target_logprob", results.target_logprob);
  by_rows("entropy", results.entropy);
  by_rows("argmax", results.argmax);
  by_rows("correct", results.correct);
  scalar("counted_rows", results.counted_rows);
  scalar("cross_entropy", results.cross_entropy);
  scalar("z_loss", results.z_loss);
  by_rows("grad_hidden", results.grad_hidden);
  by_vocab("grad_weight", results.grad_weight);
  by_vocab("grad_bias", results.grad_bias);
  return out;
}

}  // namespace shardloss::launch
