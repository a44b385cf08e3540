/// \file
/// The objective, and what it makes of a row's statistics: its loss, and the coefficients of its
/// gradient (RowCoefficients). Both backends compute what stands here; OBJECTIVE.md explains it. A
/// row's scalars are double: they cost nothing, and large terms cancel in them.
///
///   lse = M + log_sum       nll = log_sum + (M - z_y)
///   ce  = (1 - a) c_y nll + a / V (lse sum c - sum c z)
///   row loss = t (ce + k lse^2)
///
///   A = t L ((1 - a) c_y + a / V sum c + 2 k lse) + g_lse - g_logprob + g_entropy (E_p[z] - M)
///   B = -t L (1 - a) c_y + g_logprob     C = -t L a / V     G = -g_entropy
///
/// all times s, with L the upstream of the loss times the factor of the reduction. Soft targets q'
/// instead:
///
///   ce = lse sum c q' - sum c q' z
///   A  = t L (sum c q' + 2 k lse) + g_lse + g_entropy (E_p[z] - M)     B = 0     C = -t L
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "host_device.hpp"
#include "records.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::detail {

/// Rows differ in what they give and where they count: an ignored one nowhere, an invalid one is
/// NaN in the loss and has no gradient.
enum class RowKind : std::uint8_t { ordinary, ignored, invalid };

/// The objective with everything that does not depend on rows worked out, as one rank sees it.
template <class Real>
struct Objective {
  Real scale;      ///< s
  Real cap;        ///< 0: none
  Real smoothing;  ///< a, in PyTorch's form
  Real z_loss;     ///< k
  bool soft_targets;
  std::int64_t vocab;  ///< V
  std::int64_t ignore_index;
  std::int64_t first;    ///< of this rank's shard
  std::int64_t columns;  ///< true columns of this rank's shard

  SHARDLOSS_HOST_DEVICE RowKind kind_of(std::int64_t target) const {
    return soft_targets ? RowKind::ordinary : kind_of_id(target);
  }

  /// Of a hard target, or an input of the embedding.
  SHARDLOSS_HOST_DEVICE RowKind kind_of_id(std::int64_t id) const {
    if (id == ignore_index) return RowKind::ignored;
    return id >= 0 && id < vocab ? RowKind::ordinary : RowKind::invalid;
  }

  /// The place of a global id among the shard's true columns, or -1.
  SHARDLOSS_HOST_DEVICE std::int64_t column_of(std::int64_t id) const {
    const auto place = static_cast<std::uint64_t>(id) - static_cast<std::uint64_t>(first);
    return place < static_cast<std::uint64_t>(columns) ? static_cast<std::int64_t>(place) : -1;
  }
};

/// Label smoothing in PyTorch's form: Megatron's is the same with another coefficient.
inline double pytorch_smoothing(const Problem& problem) {
  if (problem.label_smoothing == 0 || problem.label_smoothing_form == SmoothingForm::pytorch)
    return problem.label_smoothing;
  const auto vocab = static_cast<double>(problem.vocab);
  return problem.label_smoothing * vocab / (vocab - 1);
}

template <class Real>
Objective<Real> make_objective(const Problem& problem, const Shard& shard) {
  Objective<Real> objective{};
  objective.scale = static_cast<Real>(problem.logit_scale);
  objective.cap = static_cast<Real>(problem.softcap);
  objective.smoothing = static_cast<Real>(pytorch_smoothing(problem));
  objective.z_loss = static_cast<Real>(problem.z_loss);
  objective.soft_targets = problem.soft_targets;
  objective.vocab = problem.vocab;
  objective.ignore_index = problem.ignore_index;
  objective.first = shard.first;
  objective.columns = shard.vocab;
  return objective;
}

/// How a sum of row losses is reduced.
struct ReductionFactor {
  double value;  ///< what multiplies it: 1, 1 / denominator or 1 / normalizer; empty: 0
  bool empty;    ///< the divisor is 0: loss 0, gradients 0

  /// Even an infinite sum is 0 where nothing counts; NaN is not hidden.
  SHARDLOSS_HOST_DEVICE double reduce(double sum) const {
    return empty && !std::isnan(sum) ? 0.0 : value * sum;
  }
};

/// `normalizer`: null unless the problem has one.
template <class Real>
SHARDLOSS_HOST_DEVICE ReductionFactor reduction_factor(Reduction reduction, const Real* normalizer,
                                                       double denominator) {
  double divisor = 1;
  if (normalizer != nullptr)
    divisor = *normalizer;
  else if (reduction == Reduction::mean)
    divisor = denominator;
  return {divisor == 0 ? 0.0 : 1 / divisor, divisor == 0};
}

/// The objective with what one call adds to it.
template <class Real>
struct CallObjective {
  Objective<Real> objective;
  const Real* class_weights;  ///< [V], or null
  double class_sum;           ///< sum of c_v over the vocabulary; V without class weights
  double class_most;          ///< largest |c_v|; 1 without
  double reduction;           ///< ReductionFactor::value

  SHARDLOSS_HOST_DEVICE double class_weight(std::int64_t target) const {
    return class_weights == nullptr ? 1.0 : static_cast<double>(class_weights[target]);
  }
};

/// A row over the whole vocabulary.
template <class Real>
struct CombinedRow {
  SavedRow<Real> saved;
  Real target_logit;
  Real weighted_sum;
  std::int64_t argmax;

  /// lse - z_y, without the cancellation of the two.
  SHARDLOSS_HOST_DEVICE double target_nll() const {
    return saved.log_sum + (static_cast<double>(saved.max) - target_logit);
  }
};

/// What a row adds to the loss, weighted by t. Not rounded to float32: the denominator may bring
/// back into its range what large weights took out of it.
struct RowLoss {
  double cross_entropy;
  double z_loss;
};
static_assert(sizeof(RowLoss) == 2 * sizeof(double));  // what the plan counts

/// What is saved of statistics over the whole vocabulary, which may be more precise. A row of
/// nothing but -inf has no softmax.
template <class Real, class Sum>
SHARDLOSS_HOST_DEVICE SavedRow<Real> saved_of(const RowStatistics<Sum>& s) {
  const bool empty = s.max == minus_infinity<Sum>;
  return {static_cast<Real>(s.max),
          empty ? quiet_nan<Real> : static_cast<Real>(std::log(static_cast<double>(s.sum_exp))),
          static_cast<Real>(s.centered_sum / s.sum_exp), static_cast<Real>(s.target_mass)};
}

/// A weight of 0 keeps out an infinite loss; NaN is not hidden.
SHARDLOSS_HOST_DEVICE inline double weighed(double weight, double loss) {
  return weight == 0 && std::isinf(loss) ? 0.0 : weight * loss;
}

template <class Real>
SHARDLOSS_HOST_DEVICE RowLoss loss_of(const CallObjective<Real>& call, RowKind kind,
                                      const RowInput<Real>& input, const CombinedRow<Real>& row) {
  if (kind == RowKind::ignored) return {0.0, 0.0};
  if (kind == RowKind::invalid) return {quiet_nan<double>, 0.0};
  const double lse = row.saved.lse();
  double cross_entropy = 0;
  if (call.objective.soft_targets) {
    cross_entropy = lse * row.saved.target_mass - row.weighted_sum;
  } else {
    const double smoothing = call.objective.smoothing;
    // A coefficient of 0 keeps out what it multiplies, an infinite term too.
    const double hard = (1 - smoothing) * call.class_weight(input.target);
    if (hard != 0) cross_entropy = hard * row.target_nll();
    if (smoothing != 0) {
      cross_entropy += smoothing * (lse * call.class_sum - row.weighted_sum) /
                       static_cast<double>(call.objective.vocab);
    }
  }
  const double t = input.weight;
  const double k = call.objective.z_loss;
  return {weighed(t, cross_entropy), k == 0 ? 0.0 : weighed(t, k * lse * lse)};
}

/// What the caller gets of a row.
template <class Real>
struct RowOutputs {
  Real loss;
  Real lse;
  Real target_logprob;
  Real entropy;
  std::int64_t argmax;
  std::uint8_t correct;
};

template <class Real>
SHARDLOSS_HOST_DEVICE RowOutputs<Real> outputs_of(RowKind kind, const RowInput<Real>& input,
                                                  const CombinedRow<Real>& row,
                                                  const RowLoss& loss) {
  const bool ordinary = kind == RowKind::ordinary;
  const Real other = kind == RowKind::invalid ? quiet_nan<Real> : Real(0);
  return {.loss = static_cast<Real>(loss.cross_entropy + loss.z_loss),
          .lse = static_cast<Real>(row.saved.lse()),
          .target_logprob = ordinary ? static_cast<Real>(-row.target_nll()) : other,
          .entropy = row.saved.log_sum - row.saved.centered_mean,
          .argmax = row.argmax,
          .correct = ordinary && row.argmax == input.target};
}

/// The coefficients of a row before the chunk's power of two; all 0 unless it is ordinary.
template <class Real>
SHARDLOSS_HOST_DEVICE RowCoefficients<Real> coefficients_of(const CallObjective<Real>& call,
                                                            RowKind kind,
                                                            const RowInput<Real>& input,
                                                            const SavedRow<Real>& row) {
  const Objective<Real>& o = call.objective;
  RowCoefficients<Real> out{};
  out.max = row.max;
  out.log_sum = row.log_sum;
  out.column = -1;
  out.row = input.row;
  if (kind != RowKind::ordinary) return out;

  double a = 0, b = 0, c = 0;
  // t L; an infinite upstream of nothing is nothing.
  const double upstream =
      call.reduction == 0 ? 0.0 : input.upstream_loss * call.reduction * input.weight;
  if (upstream != 0) {
    if (o.soft_targets) {
      a = row.target_mass;
      c = -upstream;
    } else {
      const double smoothing = o.smoothing;
      const double hard = (1 - smoothing) * call.class_weight(input.target);
      a = hard;
      b = -upstream * hard;
      if (smoothing != 0) {
        const double even = smoothing / static_cast<double>(o.vocab);
        a += even * call.class_sum;
        c = -upstream * even;
      }
    }
    if (o.z_loss != 0) a += 2 * static_cast<double>(o.z_loss) * row.lse();
    a *= upstream;
  }
  a += static_cast<double>(input.upstream_lse) - input.upstream_logprob;
  b += input.upstream_logprob;
  const double g = -static_cast<double>(input.upstream_entropy);
  if (g != 0) a -= g * row.centered_mean;
  // s brings back into the range of Real what an upstream may have taken out of it.
  const double s = o.scale;
  out.a = static_cast<Real>(s * a);
  out.b = static_cast<Real>(s * b);
  out.c = static_cast<Real>(s * c);
  out.g = static_cast<Real>(s * g);
  if (!o.soft_targets) out.column = o.column_of(input.target);
  return out;
}

/// The largest |du| that the row's coefficients allow, about; 0 where that is not finite.
/// `log_vocab`: log V.
template <class Real>
SHARDLOSS_HOST_DEVICE double magnitude_of(const CallObjective<Real>& call,
                                          const RowCoefficients<Real>& row, double log_vocab) {
  // An infinite weight of a class that no row has is in no gradient.
  const double smooth = row.c == 0 ? 0.0 : std::abs(static_cast<double>(row.c)) * call.class_most;
  const double magnitude = std::abs(static_cast<double>(row.a)) +
                           std::abs(static_cast<double>(row.b)) + smooth +
                           std::abs(static_cast<double>(row.g)) * log_vocab;
  return std::isfinite(magnitude) ? magnitude : 0.0;
}

/// The power of two that brings the largest magnitude of a chunk near 1, or, where its logit
/// gradients are stored in float16, where small probabilities keep their digits: that ends at 65504
/// and 2^-24. The same on every rank: all know all rows of a chunk.
template <class Real>
SHARDLOSS_HOST_DEVICE int chunk_power(double magnitude, DType stored) {
  // It and its inverse are normal numbers: past the range an exact 0 would become inf x 0.
  constexpr int most = std::numeric_limits<Real>::max_exponent - 2;
  if (magnitude == 0) return 0;
  const int power = std::ilogb(magnitude) - (stored == DType::float16 ? 10 : 0);
  return power < -most ? -most : (power > most ? most : power);
}

}  // namespace shardloss::detail
