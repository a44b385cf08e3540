// From statistics to loss and gradient coefficients: semantics.md sections 2 and 3, row by row.
#include "objective.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "row_steps.hpp"

namespace shardloss::detail::cpu {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

template <class Real>
const RowStatistics<Real>& statistics_at(const std::byte* exchange, std::int64_t segment_bytes,
                                         int rank, std::int64_t row) {
  const std::byte* segment = exchange + rank * segment_bytes + sizeof(CallHeader);
  return reinterpret_cast<const RowStatistics<Real>*>(segment)[row];
}

// A weight of 0 keeps out an infinite loss; NaN is not hidden.
double weighed(double weight, double loss) {
  return weight == 0 && std::isinf(loss) ? 0.0 : weight * loss;
}

}  // namespace

template <class Real>
CombinedRow<Real> combine_row(const std::byte* exchange, std::int64_t segment_bytes, int ranks,
                              std::int64_t row) {
  CombinedRow<Real> result{};
  result.argmax = std::numeric_limits<std::int64_t>::max();
  double max = minus_infinity;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& s = statistics_at<Real>(exchange, segment_bytes, rank, row);
    if (s.max > max || (s.max == max && s.argmax < result.argmax)) result.argmax = s.argmax;
    if (s.max > max) max = s.max;
  }
  double sum = 0, centered = 0, target = 0, weighted = 0, mass = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& s = statistics_at<Real>(exchange, segment_bytes, rank, row);
    target += s.target_logit;
    weighted += s.weighted_sum;
    mass += s.target_mass;
    if (s.max == minus_infinity) {
      sum += s.sum_exp;  // 0, or NaN
      continue;
    }
    const double below = s.max - max;
    const double shrink = std::exp(below);
    sum += s.sum_exp * shrink;
    centered += shrink == 0 ? 0.0 : (s.centered_sum + s.sum_exp * below) * shrink;
  }
  // A row of nothing but -inf has no softmax.
  const bool empty = max == minus_infinity;
  result.saved.max = static_cast<Real>(max);
  result.saved.log_sum =
      empty ? std::numeric_limits<Real>::quiet_NaN() : static_cast<Real>(std::log(sum));
  result.saved.centered_mean = static_cast<Real>(centered / sum);
  result.saved.target_mass = static_cast<Real>(mass);
  result.target_logit = static_cast<Real>(target);
  result.weighted_sum = static_cast<Real>(weighted);
  return result;
}

template <class Real>
RowLoss loss_of(const CallObjective<Real>& call, const RowInput<Real>& input,
                const CombinedRow<Real>& row) {
  const Objective<Real>& objective = call.objective;
  const RowKind kind = kind_of(objective, call.soft_targets, input.target);
  if (kind == RowKind::ignored) return {0.0, 0.0};
  if (kind == RowKind::invalid) return {std::numeric_limits<double>::quiet_NaN(), 0.0};
  const double t = input.weight;
  const double lse = row.lse();
  double cross_entropy = 0;
  if (call.soft_targets) {
    cross_entropy = lse * row.saved.target_mass - row.weighted_sum;
  } else {
    const double a = objective.smoothing;
    // A coefficient of 0 keeps out what it multiplies, an infinite term too.
    const double hard = (1 - a) * call.class_weight(input.target);
    if (hard != 0) cross_entropy = hard * row.target_nll();
    if (a != 0) {
      cross_entropy +=
          a * (lse * call.class_sum - row.weighted_sum) / static_cast<double>(objective.vocab);
    }
  }
  const double k = objective.z_loss;
  return {weighed(t, cross_entropy), k == 0 ? 0.0 : weighed(t, k * lse * lse)};
}

template <class Real>
RowCoefficients<Real> coefficients_of(const CallObjective<Real>& call, const RowInput<Real>& input,
                                      const SavedRow<Real>& row) {
  const Objective<Real>& objective = call.objective;
  RowCoefficients<Real> k{};
  k.max = row.max;
  k.log_sum = row.log_sum;
  k.column = -1;
  k.row = input.row;
  if (kind_of(objective, call.soft_targets, input.target) != RowKind::ordinary) return k;

  double a = 0, b = 0, c = 0;
  const double loss = input.upstream_loss * call.reduction * input.weight;
  if (loss != 0) {
    const double smoothing = objective.smoothing;
    if (call.soft_targets) {
      a = row.target_mass;
      c = -loss;
    } else {
      const auto vocab = static_cast<double>(objective.vocab);
      const double hard = (1 - smoothing) * call.class_weight(input.target);
      a = smoothing == 0 ? hard : hard + smoothing / vocab * call.class_sum;
      b = -loss * hard;
      c = -loss * smoothing / vocab;
    }
    if (objective.z_loss != 0) {
      a += 2 * static_cast<double>(objective.z_loss) * (static_cast<double>(row.max) + row.log_sum);
    }
    a *= loss;
  }
  a += static_cast<double>(input.upstream_lse) - input.upstream_logprob;
  b += input.upstream_logprob;
  if (input.upstream_entropy != 0) {
    a += static_cast<double>(input.upstream_entropy) * row.centered_mean;
    k.g = -input.upstream_entropy;
  }
  k.a = static_cast<Real>(a);
  k.b = static_cast<Real>(b);
  k.c = static_cast<Real>(c);
  if (!call.soft_targets) k.column = column_of(objective, input.target);
  return k;
}

template <class Real>
double normalise(const CallObjective<Real>& call, int exponent, RowCoefficients<Real>* rows,
                 std::int64_t count) {
  const double log_vocab = std::log(static_cast<double>(call.objective.vocab));
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const RowCoefficients<Real>& k = rows[i];
    const double magnitude = std::abs(static_cast<double>(k.a)) + std::abs(k.b) +
                             std::abs(k.c) * call.class_most + std::abs(k.g) * log_vocab;
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  largest *= std::abs(static_cast<double>(call.objective.scale));
  if (largest == 0) return 1.0;
  // Products multiply by the power of two as Real: past its range an exact 0 would become inf x 0.
  using Limits = std::numeric_limits<Real>;
  const int power = std::clamp(std::ilogb(largest) - exponent, Limits::min_exponent - 1,
                               Limits::max_exponent - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    RowCoefficients<Real>& k = rows[i];
    k.a = std::scalbn(k.a, -power);
    k.g = std::scalbn(k.g, -power);
    k.b = std::scalbn(k.b, -power);
    k.c = std::scalbn(k.c, -power);
  }
  return std::ldexp(1.0, power);
}

#define SHARDLOSS_INSTANTIATE(Real)                                                             \
  template CombinedRow<Real> combine_row(const std::byte*, std::int64_t, int, std::int64_t);    \
  template RowLoss loss_of(const CallObjective<Real>&, const RowInput<Real>&,                   \
                           const CombinedRow<Real>&);                                           \
  template RowCoefficients<Real> coefficients_of(const CallObjective<Real>&,                    \
                                                 const RowInput<Real>&, const SavedRow<Real>&); \
  template double normalise(const CallObjective<Real>&, int, RowCoefficients<Real>*, std::int64_t);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
