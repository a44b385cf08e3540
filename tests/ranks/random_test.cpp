// Random problems with random options against the unsharded fp64 reference: sizes 1, primes,
// 8k + 3; empty shards and empty ranks; every option of the problem; both ways.
#include "rank_test.hpp"

namespace shardloss::test {
namespace {

using Random = RankTest;

Style random_style(std::uint64_t seed) {
  Style style;
  style.target_dtype = seed % 2 == 0 ? DType::int64 : DType::int32;
  style.target_stride = seed % 3 == 0 ? 3 : 1;
  style.pad = seed % 5 == 0 ? 3 : 0;
  style.value_stride = seed % 7 == 0 ? 2 : 1;
  style.expand = seed % 4 == 0;
  style.accumulate = seed % 6 == 0;
  return style;
}

/// `count` problems from `first` on. Whole ranges, so that a failing seed can be run by itself.
void expect_random_problems(const Communicator& communicator, std::uint64_t first, int count) {
  int seen = 0;
  for (std::uint64_t seed = first; seen < count; ++seed) {
    const Sample sample = random_sample(ranks(), seed);
    if (device().kind == DeviceKind::cuda && sample.problem.dtype == DType::float64) continue;
    ++seen;
    const Way way = seed % 2 == 0 ? Way::fused : Way::two_step;
    try {
      ASSERT_EQ(check(sample, communicator, way, random_style(seed)), "")
          << (way == Way::fused ? "fused " : "two_step ") << describe_options(sample);
    } catch (const Error& error) {
      FAIL() << error.what() << "\n" << describe_options(sample);
    }
  }
}

TEST_F(Random, ProblemsMatchTheReference) { expect_random_problems(communicator(), 1000, 150); }

TEST_F(Random, CompactAccumulationMatchesTheReferenceWithinItsOwnBound) {
  int seen = 0;
  for (std::uint64_t seed = 5000; seen < 12; ++seed) {
    Sample sample = random_sample(ranks(), seed);
    if (size_of(sample.problem.dtype) != 2 || sample.data.rows == 0) continue;
    ++seen;
    sample.problem.accumulation = Accumulation::compact;
    sample.problem.grad_hidden = sample.problem.grad_weight = GradDType::same;
    expect_reference(sample);
  }
}

}  // namespace
}  // namespace shardloss::test
