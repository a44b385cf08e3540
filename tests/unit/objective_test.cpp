// What both backends take from objective.hpp, where its values are not seen through losses.
#include "objective.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace shardloss::test {
namespace {

using detail::RowKind;

detail::Objective<double> shard_of(std::int64_t first, std::int64_t columns) {
  detail::Objective<double> objective{};
  objective.vocab = 100;
  objective.ignore_index = 7;
  objective.first = first;
  objective.columns = columns;
  return objective;
}

TEST(Objective, AnIdHasAColumnInItsShardAlone) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto shard = shard_of(40, 20);
  EXPECT_EQ(shard.column_of(40), 0);
  EXPECT_EQ(shard.column_of(59), 19);
  for (const std::int64_t id : {least, std::int64_t{-1}, std::int64_t{39}, std::int64_t{60}, most})
    EXPECT_EQ(shard.column_of(id), -1) << id;
  EXPECT_EQ(shard_of(100, 0).column_of(100), -1) << "an empty shard";
}

TEST(Objective, IgnoredGoesBeforeInvalidAndSoftTargetsKnowNeither) {
  auto objective = shard_of(0, 100);
  EXPECT_EQ(objective.kind_of(7), RowKind::ignored);
  EXPECT_EQ(objective.kind_of(99), RowKind::ordinary);
  EXPECT_EQ(objective.kind_of(100), RowKind::invalid);
  EXPECT_EQ(objective.kind_of(-1), RowKind::invalid);
  objective.ignore_index = -1;
  EXPECT_EQ(objective.kind_of(-1), RowKind::ignored);
  objective.soft_targets = true;
  EXPECT_EQ(objective.kind_of(-1), RowKind::ordinary);
}

// The largest smoothing is 1 in PyTorch's form: rounded above it, 1 - a would let in infinite terms
// that a coefficient of 0 keeps out.
TEST(Objective, MegatronsSmoothingIsTheOneThatWasValidated) {
  Problem problem{.max_rows = 1, .hidden = 1};
  problem.label_smoothing_form = SmoothingForm::megatron;
  int reached = 0;
  for (problem.vocab = 2; problem.vocab < 2000; ++problem.vocab) {
    const auto vocab = static_cast<double>(problem.vocab);
    problem.label_smoothing = (vocab - 1) / vocab;
    if (problem.label_smoothing * vocab / (vocab - 1) > 1) continue;  // refused
    const auto objective = detail::make_objective<double>(problem, {});
    ASSERT_LE(objective.smoothing, 1) << problem.vocab;
    if (objective.smoothing == 1) ++reached;
  }
  EXPECT_GT(reached, 1000);
}

TEST(Objective, WhereNothingCountsASumIsZeroUnlessItIsNaN) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double two = 2;
  const double* none = nullptr;
  EXPECT_EQ(detail::reduction_factor(Reduction::mean, none, 4).reduce(6), 1.5);
  EXPECT_EQ(detail::reduction_factor(Reduction::sum, none, 4).reduce(6), 6);
  EXPECT_EQ(detail::reduction_factor(Reduction::none, none, 0).reduce(6), 6);
  EXPECT_EQ(detail::reduction_factor(Reduction::mean, &two, 4).reduce(6), 3);
  EXPECT_EQ(detail::reduction_factor(Reduction::sum, &two, 4).reduce(6), 3);
  const auto empty = detail::reduction_factor(Reduction::mean, none, 0);
  EXPECT_EQ(empty.value, 0) << "no gradients";
  EXPECT_EQ(empty.reduce(infinity), 0);
  EXPECT_TRUE(std::isnan(empty.reduce(detail::quiet_nan<double>)));
  // An infinite denominator is not an empty one.
  EXPECT_TRUE(
      std::isnan(detail::reduction_factor(Reduction::mean, none, infinity).reduce(infinity)));
}

// It and its inverse are normal numbers whatever a chunk's largest magnitude.
TEST(Objective, TheChunksPowerOfTwoHasAnInverse) {
  EXPECT_EQ(detail::chunk_power<float>(0, DType::float16), 0);
  EXPECT_EQ(detail::chunk_power<float>(1, DType::float32), 0);
  EXPECT_EQ(detail::chunk_power<float>(0.3, DType::bfloat16), -2);
  EXPECT_EQ(detail::chunk_power<float>(2048, DType::float16), 1);
  for (const double magnitude : {1e-300, 1e-44, 1e-38, 1e38, 1e40, 1e300}) {
    const int power = detail::chunk_power<float>(magnitude, DType::float16);
    EXPECT_TRUE(std::isnormal(std::ldexp(1.0F, power))) << magnitude;
    EXPECT_TRUE(std::isnormal(std::ldexp(1.0F, -power))) << magnitude;
    EXPECT_EQ(power > 0, magnitude > 1);
    const int wide = detail::chunk_power<double>(magnitude, DType::float64);
    EXPECT_NEAR(std::ldexp(magnitude, -wide), 1.5, 0.5) << magnitude;
  }
}

}  // namespace
}  // namespace shardloss::test
