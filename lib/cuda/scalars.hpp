/// \file
/// What the kernels of one call leave for each other in Buffer::scalars and Buffer::row_scratch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "objective.hpp"
#include "records.hpp"

namespace shardloss::detail::cuda {

/// A chunk's power of two: logit gradients are made times `inverse`, products multiply by `alpha`.
/// Both 1 unless the gradients are float16.
struct ChunkScale {
  float alpha;
  float inverse;
};

/// Buffer::scalars.
struct PassScalars {
  std::uint64_t call;     ///< number of this call on the device
  std::uint32_t spoilt;   ///< 1: ranks differ or a row index points outside: losses are NaN
  std::uint32_t arrived;  ///< blocks of a chunk's combination that are done
  double denominator;     ///< sum of t c_y over the ordinary rows of the group
  ReductionFactor factor;
  std::int64_t counted;  ///< ordinary rows of the group
  double class_sum;      ///< sum of the class weights; V where there are none
  float class_most;      ///< largest magnitude among them; 1 where there are none
  double cross_entropy;  ///< running sums over the rows combined so far
  double z_loss;
  ChunkScale scale[2];  ///< of the chunk in each slot
};
static_assert(sizeof(PassScalars) <= 4096);

/// One block's share of the scan of the targets.
struct ScanShare {
  double denominator;
  double class_sum;
  std::int64_t counted;
  std::int64_t invalid;
  std::int64_t invalid_row;
  std::int64_t invalid_value;
  std::int64_t outside;  ///< 1 + the first place at which the row index points outside; 0: none
  std::uint64_t hash;
  float class_most;
};

/// One block's share of a chunk's combination.
struct CombineShare {
  double cross_entropy;
  double z_loss;
  double magnitude;
};

/// In the first shares_bytes of Buffer::row_scratch, one kernel after the other.
inline constexpr int most_scan_blocks = 128;
inline constexpr int most_combine_blocks = 1024;
inline constexpr std::int64_t most_split_statistics = 2048;
static_assert(most_scan_blocks * sizeof(ScanShare) <= shares_bytes);
static_assert(most_combine_blocks * sizeof(CombineShare) <= shares_bytes);
static_assert(most_split_statistics * sizeof(RowStatistics<float>) <= shares_bytes);

}  // namespace shardloss::detail::cuda
