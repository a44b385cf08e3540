// Steps 4 and 5: the gathered statistics of a chunk become outputs, sums, and coefficients.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "../objective.hpp"
#include "logits.hpp"
#include "steps.hpp"

namespace shardloss::detail::cpu {
namespace {

// The statistics of position `row` in one of the P segments of an exchange.
template <class Real>
const RowStatistics<Real>& statistics_at(const std::byte* exchange, std::int64_t segment_bytes,
                                         int rank, std::int64_t row) {
  const std::byte* segment = exchange + rank * segment_bytes + sizeof(CallHeader);
  return reinterpret_cast<const RowStatistics<Real>*>(segment)[row];
}

// Added up in rank order: every rank gets the same bits.
template <class Real>
CombinedRow<Real> combine_row(const std::byte* exchange, std::int64_t segment_bytes, int ranks,
                              std::int64_t row) {
  RowStatistics<double> all{};
  all.max = minus_infinity<double>;
  all.argmax = std::numeric_limits<std::int64_t>::max();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& s = statistics_at<Real>(exchange, segment_bytes, rank, row);
    if (s.max > all.max || (s.max == all.max && s.argmax < all.argmax)) all.argmax = s.argmax;
    if (s.max > all.max) all.max = s.max;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& s = statistics_at<Real>(exchange, segment_bytes, rank, row);
    all.target_logit += s.target_logit;
    all.weighted_sum += s.weighted_sum;
    all.target_mass += s.target_mass;
    if (s.max == minus_infinity<Real>) {
      all.sum_exp += s.sum_exp;  // 0, or NaN
      continue;
    }
    const double below = s.max - all.max;
    const double shrink = std::exp(below);
    all.sum_exp += s.sum_exp * shrink;
    all.centered_sum += shrink == 0 ? 0.0 : (s.centered_sum + s.sum_exp * below) * shrink;
  }
  return {.saved = saved_of<Real>(all),
          .target_logit = static_cast<Real>(all.target_logit),
          .weighted_sum = static_cast<Real>(all.weighted_sum),
          .argmax = all.argmax};
}

template <class Real>
CallObjective<Real> call_objective(const Context<Real>& context, const Call& call) {
  const Scalars& scalars = context.scalars(call);
  return {.objective = context.objective,
          .class_weights = static_cast<const Real*>(call.in->class_weights.data()),
          .class_sum = scalars.class_sum,
          .class_most = scalars.class_most,
          .reduction = context.factor(call).value};
}

// The outputs of one of this rank's rows.
template <class Real>
void store_row(const Context<Real>& context, const Call& call, std::int64_t row,
               const RowOutputs<Real>& of) {
  const Outputs& out = *call.out;
  if (context.problem.reduction == Reduction::none) write<Real>(out.loss, row, of.loss);
  write<Real>(out.row_loss, row, of.loss);
  write<Real>(out.lse, row, of.lse);
  write<Real>(out.target_logprob, row, of.target_logprob);
  write<Real>(out.entropy, row, of.entropy);
  write<std::int64_t>(out.argmax, row, of.argmax);
  write<std::uint8_t>(out.correct, row, of.correct);
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
    if (context.objective.kind_of(inputs[row].target) == RowKind::ordinary) ++scalars.counted;
  }
}

// Divides the coefficients of a chunk by its power of two.
template <class Real>
void normalise(const Context<Real>& context, const Call& call, const Chunk& chunk,
               const CallObjective<Real>& objective) {
  RowCoefficients<Real>* rows = context.coefficients(call, chunk);
  const double log_vocab = std::log(static_cast<double>(context.objective.vocab));
  double largest = 0;
  for (std::int64_t i = 0; i < chunk.rows; ++i)
    largest = std::max(largest, magnitude_of(objective, rows[i], log_vocab));
  const int power = chunk_power<Real>(largest, context.plan.logits_dtype);
  for (std::int64_t i = 0; i < chunk.rows; ++i) {
    RowCoefficients<Real>& k = rows[i];
    k.a = std::scalbn(k.a, -power);
    k.g = std::scalbn(k.g, -power);
    k.b = std::scalbn(k.b, -power);
    k.c = std::scalbn(k.c, -power);
  }
  context.chunk_scale(call, chunk) = std::ldexp(1.0, power);
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
    const RowKind kind = context.objective.kind_of(inputs[row].target);
    const RowLoss loss = loss_of(objective, kind, inputs[row], combined);
    losses[row] = loss;
    if (call.saved != nullptr) saved_rows<Real>(call, chunk)[row] = combined.saved;
    const std::int64_t own = row - chunk.own_begin;
    if (own >= 0 && own < chunk.own_rows) {
      store_row(context, call, source_row(call, chunk.own_first + own),
                outputs_of(kind, inputs[row], combined, loss));
    }
    if (call.gradients())
      coefficients[row] = coefficients_of(objective, kind, inputs[row], combined.saved);
  }
  add_losses(context, call, chunk);
  if (call.gradients()) normalise(context, call, chunk, objective);
}

template <class Real>
void recompute_coefficients(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  const CallObjective<Real> objective = call_objective(context, call);
  const RowInput<Real>* inputs = context.inputs(call, chunk);
  const SavedRow<Real>* saved = saved_rows<Real>(call, chunk);
  RowCoefficients<Real>* coefficients = context.coefficients(call, chunk);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    const RowKind kind = context.objective.kind_of(inputs[row].target);
    coefficients[row] = coefficients_of(objective, kind, inputs[row], saved[row]);
  }
  normalise(context, call, chunk, objective);
}

#define SHARDLOSS_INSTANTIATE(Real)                                       \
  template void combine(const Context<Real>&, const Call&, const Chunk&); \
  template void recompute_coefficients(const Context<Real>&, const Call&, const Chunk&);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
