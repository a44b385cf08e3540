/// \file
/// The fixture and the problems of tests with more than 2^31 elements.
#pragma once

#include <cstdint>

#include "gpu_test.hpp"

namespace shardloss::test {

inline constexpr std::int64_t past_int32 = std::int64_t{1} << 31;
/// A hidden size that takes both other dimensions past that.
inline constexpr std::int64_t wide = 8448;

class Large : public GpuTest {
 protected:
  static bool lacks_memory(double gigabytes) {
    return static_cast<double>(free_memory()) < gigabytes * 1e9;
  }
};

/// Decided by all ranks together.
#define SHARDLOSS_NEEDS_GPU_MEMORY(gigabytes) \
  if (count(lacks_memory(gigabytes)) > 0)     \
  GTEST_SKIP() << "needs " << (gigabytes) << " GB of GPU memory"

/// V D past 2^31: the weight, its gradient and the sums of that. On two ranks each shard is as
/// large.
inline Problem large_weight() {
  Problem problem = plain_problem(9, wide, std::int64_t{262144} * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, 4};
  return problem;
}

/// N D past 2^31: hidden states and their gradient.
inline Problem large_hidden() {
  Problem problem = plain_problem(262145, wide, std::int64_t{40} * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, 16384};
  problem.grad_weight = GradDType::float32;
  return problem;
}

}  // namespace shardloss::test
