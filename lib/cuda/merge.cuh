/// \file
/// Statistics of parts of a row into those of the row: parts of a shard, or the shards of the
/// ranks.
#pragma once

#include "logits.cuh"

namespace shardloss::detail::cuda {

/// Adds up part(0) .. part(count - 1) in that order. A part without a finite logit contributes
/// nothing, but its NaN travels in the sum.
template <class Part>
__device__ RowStatistics<float> merge_statistics(int count, Part part) {
  RowStatistics<float> row{};
  row.max = -infinity();
  row.argmax = -1;
  for (int i = 0; i < count; ++i) {
    const RowStatistics<float>& p = part(i);
    if (p.argmax >= 0 && (row.argmax < 0 || p.max > row.max)) row.argmax = p.argmax;
    row.max = fmaxf(row.max, p.max);
  }
  for (int i = 0; i < count; ++i) {
    const RowStatistics<float>& p = part(i);
    const float shift = p.max == row.max ? 0.0f : p.max - row.max;
    const float factor = expf(shift);
    row.sum_exp += factor * p.sum_exp;
    row.centered_sum += factor * fmaf(p.sum_exp, fmaxf(shift, lowest), p.centered_sum);
    row.target_logit += p.target_logit;
    row.weighted_sum += p.weighted_sum;
    row.target_mass += p.target_mass;
  }
  return row;
}

}  // namespace shardloss::detail::cuda
