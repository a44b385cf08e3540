/// \file
/// The coefficients of a row's logit gradient, from the row's statistics and what the caller wants
/// of it:
///
///   A = t L ((1 - a) c_y + a / V sum c + 2 k lse) + g_lse - g_logprob + g_entropy (E_p[z] - M)
///   B = -t L (1 - a) c_y + g_logprob     C = -t L a / V     G = -g_entropy
///
/// with L the upstream of the loss times the factor of the reduction. Scalars are double: they cost
/// nothing, and large terms cancel in them.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace shardloss::detail::cuda {

enum class RowKind { ordinary, ignored, invalid };

__device__ inline RowKind kind_of(const CombineArguments& c, std::int64_t target) {
  if (c.soft_targets) return RowKind::ordinary;
  if (target == c.objective.ignore_index) return RowKind::ignored;
  return target >= 0 && target < c.objective.vocab ? RowKind::ordinary : RowKind::invalid;
}

__device__ inline double class_weight(const CombineArguments& c, std::int64_t target) {
  return c.class_weights == nullptr ? 1.0 : static_cast<double>(c.class_weights[target]);
}

/// What backward needs of a row. A row of nothing but -inf has no softmax.
__device__ inline SavedRow<float> saved_of(const RowStatistics<float>& s) {
  const bool empty = s.max == -infinity();
  const float log_sum =
      empty ? not_a_number() : static_cast<float>(log(static_cast<double>(s.sum_exp)));
  return {s.max, log_sum, s.centered_sum / s.sum_exp, s.target_mass};
}

/// Not divided by the chunk's power of two; all 0 unless the row is ordinary.
__device__ inline RowCoefficients<float> coefficients_of(const CombineArguments& c,
                                                         const PassScalars& scalars, RowKind kind,
                                                         const SavedRow<float>& saved,
                                                         const RowInput<float>& input) {
  const Objective<float>& o = c.objective;
  RowCoefficients<float> out{};
  out.max = saved.max;
  out.log_sum = saved.log_sum;
  out.column = -1;
  out.row = input.row;
  if (kind != RowKind::ordinary) return out;
  double a = 0.0;
  double b = 0.0;
  double k = 0.0;
  const double factor = c.reduced ? scalars.factor : 1.0;
  const double loss = input.upstream_loss * factor * input.weight;
  if (loss != 0.0) {
    if (c.soft_targets) {
      a = saved.target_mass;
      k = -loss;
    } else {
      const double hard = (1.0 - static_cast<double>(o.smoothing)) * class_weight(c, input.target);
      a = hard;
      b = -loss * hard;
      if (o.smoothing != 0.0f) {
        const double even = o.smoothing / static_cast<double>(o.vocab);
        a += even * scalars.class_sum;
        k = -loss * even;
      }
    }
    if (o.z_loss != 0.0f) a += 2.0 * o.z_loss * (static_cast<double>(saved.max) + saved.log_sum);
    a *= loss;
  }
  a += static_cast<double>(input.upstream_lse) - input.upstream_logprob;
  b += input.upstream_logprob;
  if (input.upstream_entropy != 0.0f) {
    a += static_cast<double>(input.upstream_entropy) * saved.centered_mean;
    out.g = -input.upstream_entropy;
  }
  out.a = static_cast<float>(a);
  out.b = static_cast<float>(b);
  out.c = static_cast<float>(k);
  const std::int64_t column = input.target - o.first;
  if (!c.soft_targets && column >= 0 && column < o.columns) out.column = column;
  return out;
}

}  // namespace shardloss::detail::cuda
