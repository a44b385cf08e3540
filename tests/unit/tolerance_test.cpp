// What is allowed where terms cancel: the rounding of each, and no more.
#include <gtest/gtest.h>

#include <cmath>

#include "compare.hpp"
#include "tolerance.hpp"

namespace shardloss::test {
namespace {

constexpr double eps = tolerance::eps(DType::bfloat16);

/// A bias gradient of `columns` columns, each of `rows` terms of +-1 that cancel, off by `error`
/// everywhere: its share of what is allowed.
double share_of(std::int64_t rows, std::size_t columns, double error) {
  Problem problem;
  problem.dtype = DType::bfloat16;
  problem.accumulation = Accumulation::accurate;
  const auto n = static_cast<double>(rows);
  ReferenceTerms terms;
  terms.formed.assign(columns, n);
  terms.summed.assign(columns, n);
  terms.rounded.assign(columns, std::sqrt(n));
  terms.perturbed.assign(columns, 0);
  terms.factors.assign(columns, std::sqrt(n));
  terms.largest = 1;
  const std::vector<double> want(columns), got(columns, error);
  const auto allowed = tolerance::allowed(problem, DType::float32, 1, 1);
  return compare_gradient("grad_bias", got, want, 1, terms, allowed, {}, {}).share;
}

TEST(Tolerance, FewTermsMayAllBeRoundedTheSameWay) {
  EXPECT_LE(share_of(3, 1, 3 * eps), 1);
  EXPECT_GT(share_of(3, 1, 3.02 * eps), 1);
}

TEST(Tolerance, ManyTermsAreRoundedIndependently) {
  EXPECT_LE(share_of(400, 1, 3 * 20 * eps), 1);
  EXPECT_GT(share_of(400, 1, 3.02 * 20 * eps), 1);
}

TEST(Tolerance, ManyRowsAreNotAllTheWorst) {
  EXPECT_GT(share_of(400, 10000, 1.1 * 20 * eps), 1);
  EXPECT_LE(share_of(400, 10000, 20 * eps), 1);
}

/// Of an output that is added to a buffer the errors are relative to what was added, but both
/// numbers are those in the buffer.
TEST(Tolerance, BothNumbersContainWhatWasAddedTo) {
  const std::vector<double> before(4, 3), want(4, 4), got(4, 4.5);
  ReferenceTerms terms;
  for (auto* each :
       {&terms.formed, &terms.summed, &terms.rounded, &terms.perturbed, &terms.factors})
    each->assign(4, 0);
  tolerance::Allowed allowed;
  allowed.gradient = 0.25;
  const Comparison one = compare_gradient("grad_bias", got, want, 1, terms, allowed, {}, before);
  EXPECT_EQ(one.row, -1);
  EXPECT_DOUBLE_EQ(one.share, 2);
  EXPECT_DOUBLE_EQ(one.got, 9);
  EXPECT_DOUBLE_EQ(one.want, 8);
}

/// Past 65504 a float16 gradient is infinite, and right; close to it either may be.
TEST(Tolerance, PastTheRangeOfItsDtypeAGradientIsInfinite) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Problem problem;
  problem.dtype = DType::float16;
  ReferenceTerms terms;
  for (auto* each :
       {&terms.formed, &terms.summed, &terms.rounded, &terms.perturbed, &terms.factors})
    each->assign(1, 0);
  double magnitude = 0;
  const auto passes = [&](double got, double want) {
    const auto allowed = tolerance::allowed(problem, DType::float16, magnitude, 1);
    const std::vector<double> one = {got}, other = {want};
    return compare_gradient("grad_bias", one, other, 1, terms, allowed, allowed.weight, {})
        .passed();
  };
  EXPECT_TRUE(passes(infinity, 1e6));
  EXPECT_TRUE(passes(-infinity, -1e6));
  EXPECT_TRUE(passes(infinity, 65500));
  EXPECT_TRUE(passes(65504, 65600));
  EXPECT_FALSE(passes(-infinity, 1e6));
  EXPECT_FALSE(passes(65504, 1e6)) << "not the end of the range";
  EXPECT_FALSE(passes(infinity, 6e4));
  EXPECT_FALSE(passes(std::nan(""), 1e6));
  problem.grad_weight = GradDType::float32;
  EXPECT_FALSE(passes(infinity, 1e6));
  problem.accumulation = Accumulation::compact;
  EXPECT_TRUE(passes(infinity, 1e6)) << "it is added up in float16";
  magnitude = 1e4;
  EXPECT_FALSE(passes(infinity, 5e4)) << "however much is allowed";
  EXPECT_FALSE(passes(infinity, 0));
}

/// In units of the problem's roundoff.
tolerance::Allowed allowed_in_eps(DType dtype) {
  Problem problem;
  problem.dtype = dtype;
  tolerance::Allowed allowed = tolerance::allowed(problem, dtype, 8, 1);
  for (double* one : {&allowed.value, &allowed.gradient, &allowed.formed, &allowed.rounded,
                      &allowed.logit, &allowed.accumulate, &allowed.perturbed})
    *one /= tolerance::eps(dtype);
  return allowed;
}

TEST(Tolerance, AReferenceOfTheSamePrecisionMayBeOffAsMuch) {
  const tolerance::Allowed one = allowed_in_eps(DType::float32),
                           two = allowed_in_eps(DType::float64);
  for (const auto each :
       {&tolerance::Allowed::value, &tolerance::Allowed::gradient, &tolerance::Allowed::formed,
        &tolerance::Allowed::rounded, &tolerance::Allowed::logit, &tolerance::Allowed::accumulate,
        &tolerance::Allowed::perturbed})
    EXPECT_DOUBLE_EQ(two.*each, 2 * one.*each);
}

}  // namespace
}  // namespace shardloss::test
