// The end of a call: reduced losses, and gradients out of their accumulators.
#include "convert.hpp"
#include "steps.hpp"

namespace shardloss::detail::cpu {
namespace {

template <class Real>
void store_losses(const Context<Real>& context, const Call& call) {
  const Outputs& out = *call.out;
  const Scalars& scalars = context.scalars(call);
  const ReductionFactor factor = context.factor(call);
  const auto reduced = [&](double sum) { return static_cast<Real>(factor.reduce(sum)); };
  if (context.problem.reduction != Reduction::none) {
    write<Real>(out.loss, 0, reduced(scalars.cross_entropy + scalars.z_loss));
  }
  write<Real>(out.cross_entropy, 0, reduced(scalars.cross_entropy));
  write<Real>(out.z_loss, 0, reduced(scalars.z_loss));
  write<std::int64_t>(out.counted_rows, 0, scalars.counted);
}

template <class Real>
void store_weight(const Context<Real>& context, const Call& call) {
  const Gradients& grad = *call.grad;
  const std::int64_t hidden = context.problem.hidden;
  const Real* sums = context.template buffer<Real>(call.workspace, Buffer::grad_weight);
  const StoredMatrix<void> result = stored(grad.weight);
#pragma omp parallel for schedule(static)
  for (std::int64_t id = 0; id < context.plan.shard.vocab; ++id) {
    store(sums + id * hidden, hidden, grad.accumulate_weight, result.dtype, result.at(id, 0));
  }
}

template <class Real>
void store_bias(const Context<Real>& context, const Call& call) {
  const Tensor& bias = call.grad->bias;
  const Shard& shard = context.plan.shard;
  const bool accumulate = call.grad->accumulate_bias;
  store(context.template buffer<Real>(call.workspace, Buffer::grad_bias), shard.vocab, accumulate,
        bias.dtype(), bias.data());
  if (accumulate) return;
  for (std::int64_t padding = shard.vocab; padding < shard.width; ++padding) {
    constexpr Real zero = 0;
    store(&zero, 1, false, bias.dtype(), element(bias.data(), bias.dtype(), padding));
  }
}

}  // namespace

template <class Real>
void finish(const Context<Real>& context, const Call& call) {
  if (call.operation != Operation::backward) store_losses(context, call);
  if (call.grad->weight.given() && context.accumulates_weight(call)) store_weight(context, call);
  if (call.grad->bias.given()) store_bias(context, call);
}

template void finish(const Context<float>&, const Call&);
template void finish(const Context<double>&, const Call&);

}  // namespace shardloss::detail::cpu
