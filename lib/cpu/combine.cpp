// Steps 4 and 5: the gathered statistics of a chunk become outputs, sums, and coefficients.
#include <limits>

#include "logits.hpp"
#include "objective.hpp"
#include "steps.hpp"

namespace shardloss::detail::cpu {
namespace {

template <class Real>
CallObjective<Real> call_objective(const Context<Real>& context, const Call& call) {
  const Scalars& scalars = context.scalars(call);
  CallObjective<Real> objective{};
  objective.objective = context.objective;
  objective.soft_targets = context.problem.soft_targets;
  objective.class_weights = static_cast<const Real*>(call.in->class_weights.data());
  objective.class_sum = scalars.class_sum;
  objective.class_most = scalars.class_most;
  objective.reduction = context.reduction_factor(call);
  return objective;
}

// The outputs of one of this rank's rows.
template <class Real>
void store_row(const Context<Real>& context, const Call& call, std::int64_t row, RowKind kind,
               const RowInput<Real>& input, const CombinedRow<Real>& combined,
               const RowLoss& loss) {
  const Outputs& out = *call.out;
  const auto total = static_cast<Real>(loss.cross_entropy + loss.z_loss);
  if (context.problem.reduction == Reduction::none) write<Real>(out.loss, row, total);
  write<Real>(out.row_loss, row, total);
  write<Real>(out.lse, row, static_cast<Real>(combined.lse()));
  write<Real>(out.entropy, row, combined.saved.log_sum - combined.saved.centered_mean);
  write<std::int64_t>(out.argmax, row, combined.argmax);
  const bool correct = kind == RowKind::ordinary && combined.argmax == input.target;
  write<std::uint8_t>(out.correct, row, correct ? 1 : 0);
  auto logprob = static_cast<Real>(-combined.target_nll());
  if (kind == RowKind::ignored) logprob = 0;
  if (kind == RowKind::invalid) logprob = std::numeric_limits<Real>::quiet_NaN();
  write<Real>(out.target_logprob, row, logprob);
}

// Row losses are added in the order of the chunk's positions, on every rank all of them.
template <class Real>
void add_losses(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  Scalars& scalars = context.scalars(call);
  const RowInput<Real>* inputs = context.inputs(call, chunk);
  const RowLoss* losses = context.row_losses(call);
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    scalars.cross_entropy += losses[row].cross_entropy;
    scalars.z_loss += losses[row].z_loss;
    const RowKind kind =
        kind_of(context.objective, context.problem.soft_targets, inputs[row].target);
    if (kind == RowKind::ordinary) ++scalars.counted;
  }
}

template <class Real>
void normalise_chunk(const Context<Real>& context, const Call& call, const Chunk& chunk,
                     const CallObjective<Real>& objective) {
  // float16 ends at 65504 and 2^-24: large, so that small probabilities keep their digits.
  const int exponent = context.plan.logits_dtype == DType::float16 ? 10 : 0;
  context.chunk_scale(call, chunk) =
      normalise(objective, exponent, context.coefficients(call, chunk), chunk.rows);
}

}  // namespace

template <class Real>
void combine(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  const CallObjective<Real> objective = call_objective(context, call);
  const RowInput<Real>* inputs = context.inputs(call, chunk);
  const auto* exchange =
      context.template buffer<std::byte>(call.workspace, Buffer::exchange, chunk.slot);
  RowCoefficients<Real>* coefficients = context.coefficients(call, chunk);
  RowLoss* losses = context.row_losses(call);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    const auto combined =
        combine_row<Real>(exchange, context.map.exchange_bytes, context.plan.ranks, row);
    const RowLoss loss = loss_of(objective, inputs[row], combined);
    losses[row] = loss;
    if (call.saved != nullptr) saved_rows<Real>(call, chunk)[row] = combined.saved;
    const std::int64_t own = row - chunk.own_begin;
    if (own >= 0 && own < chunk.own_rows) {
      const RowKind kind =
          kind_of(context.objective, context.problem.soft_targets, inputs[row].target);
      store_row(context, call, source_row(call, chunk.own_first + own), kind, inputs[row], combined,
                loss);
    }
    if (call.gradients())
      coefficients[row] = coefficients_of(objective, inputs[row], combined.saved);
  }
  add_losses(context, call, chunk);
  if (call.gradients()) normalise_chunk(context, call, chunk, objective);
}

template <class Real>
void recompute_coefficients(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  const CallObjective<Real> objective = call_objective(context, call);
  const RowInput<Real>* inputs = context.inputs(call, chunk);
  const SavedRow<Real>* saved = saved_rows<Real>(call, chunk);
  RowCoefficients<Real>* coefficients = context.coefficients(call, chunk);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    coefficients[row] = coefficients_of(objective, inputs[row], saved[row]);
  }
  normalise_chunk(context, call, chunk, objective);
}

#define SHARDLOSS_INSTANTIATE(Real)                                       \
  template void combine(const Context<Real>&, const Call&, const Chunk&); \
  template void recompute_coefficients(const Context<Real>&, const Call&, const Chunk&);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
