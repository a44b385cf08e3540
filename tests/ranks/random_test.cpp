// Random problems with random options against the unsharded fp64 reference: sizes 1, primes,
// 8k + 3; empty shards and empty ranks; every option of the problem; both ways.
#include "rank_test.hpp"

namespace shardloss::test {
namespace {

using Random = RankTest;

constexpr std::uint64_t first_seed = 1000;
constexpr int problems = 150;

Way way_of(std::uint64_t seed) { return seed % 2 == 0 ? Way::fused : Way::two_step; }

// Each by a prime of its own, none by 2, which draws the way: so that any two of them meet.
Style random_style(std::uint64_t seed) {
  Style style;
  style.target_dtype = seed % 11 < 5 ? DType::int32 : DType::int64;
  style.target_stride = seed % 3 == 0 ? 3 : 1;
  style.pad = seed % 5 == 0 ? 3 : 0;
  style.value_stride = seed % 7 == 0 ? 2 : 1;
  style.expand = seed % 13 < 5;
  style.accumulate = seed % 17 < 6;
  style.argmax = seed % 19 < 10;
  return style;
}

/// `count` problems from `first` on. Whole ranges, so that a failing seed can be run by itself.
void expect_random_problems(const Communicator& communicator, std::uint64_t first, int count) {
  int seen = 0;
  for (std::uint64_t seed = first; seen < count; ++seed) {
    const Sample sample = random_sample(ranks(), seed);
    if (device().kind == DeviceKind::cuda && sample.problem.dtype == DType::float64) continue;
    ++seen;
    const Way way = way_of(seed);
    try {
      ASSERT_EQ(check(sample, communicator, way, random_style(seed)), "")
          << (way == Way::fused ? "fused " : "two_step ") << describe_options(sample);
    } catch (const Error& error) {
      FAIL() << error.what() << "\n" << describe_options(sample);
    }
  }
}

TEST_F(Random, EveryStyleMeetsBothWays) {
  for (const Way way : {Way::fused, Way::two_step}) {
    int accumulated = 0, expanded = 0, short_targets = 0, without_argmax = 0, all = 0;
    for (std::uint64_t seed = first_seed; seed < first_seed + problems; ++seed) {
      const Style style = random_style(seed);
      if (way_of(seed) != way) continue;
      const bool is_short = style.target_dtype == DType::int32;
      accumulated += style.accumulate;
      expanded += style.expand;
      short_targets += is_short;
      without_argmax += !style.argmax;
      all += style.accumulate && style.expand && is_short;
    }
    EXPECT_GT(accumulated, 10);
    EXPECT_GT(expanded, 10);
    EXPECT_GT(short_targets, 10);
    EXPECT_GT(without_argmax, 10);
    EXPECT_GT(all, 0);
  }
}

TEST_F(Random, ProblemsMatchTheReference) {
  expect_random_problems(communicator(), first_seed, problems);
}

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
