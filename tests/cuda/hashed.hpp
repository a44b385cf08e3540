/// \file
/// Large matrices that need no host memory: each element is made from its place, on the device and
/// again on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "shardloss/tensor.hpp"

#ifdef __CUDACC__
#define SHARDLOSS_TEST_BOTH __host__ __device__
#else
#define SHARDLOSS_TEST_BOTH
#endif

namespace shardloss::test {

/// Elements are odd multiples of 2^-7 below 1, times powers of two: exact in every dtype.
struct HashedMatrix {
  std::uint64_t seed = 0;
  std::int64_t columns = 0;
  float scale = 1;      ///< a power of two
  bool varied = false;  ///< rows differ in size, by factors of 1, 1/2, 1/4 and 1/8
};

SHARDLOSS_TEST_BOTH inline std::uint64_t hashed(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = (index + seed * 0x9fb21c651e98df25ULL) * 0x9e3779b97f4a7c15ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

SHARDLOSS_TEST_BOTH inline float row_scale(const HashedMatrix& m, std::int64_t row) {
  if (!m.varied) return m.scale;
  const std::uint64_t power = hashed(~m.seed, static_cast<std::uint64_t>(row)) >> 62;
  return m.scale / static_cast<float>(1 << power);
}

/// Element [row, column], given row_scale(m, row).
SHARDLOSS_TEST_BOTH inline float element_of(const HashedMatrix& m, std::int64_t row,
                                            std::int64_t column, float scale) {
  const auto index = static_cast<std::uint64_t>(row * m.columns + column);
  const int number = static_cast<int>(hashed(m.seed, index) >> 57);
  return static_cast<float>(2 * number - 127) * (1.0f / 128.0f) * scale;
}

inline float element_of(const HashedMatrix& m, std::int64_t row, std::int64_t column) {
  return element_of(m, row, column, row_scale(m, row));
}

/// Writes the rows [first, first + rows) densely to `out`, device memory of a floating dtype.
void fill_hashed(void* out, DType dtype, const HashedMatrix& m, std::int64_t first,
                 std::int64_t rows, cudaStream_t stream);

}  // namespace shardloss::test
