// The reference itself: its gradients against central differences of its own outputs, and a few
// closed forms, since everything else is compared with it.
#include "reference.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "sample.hpp"

namespace shardloss::test {
namespace {

/// What the upstreams make of the outputs: the scalar whose gradient the reference gives.
double objective(const ReferenceProblem& p) {
  const ReferenceResult r = reference(p);
  const auto up = [](const std::vector<double>& values, std::size_t i, double otherwise) {
    if (values.empty()) return otherwise;
    return values.size() == 1 ? values[0] : values[i];
  };
  double sum = 0;
  for (std::size_t i = 0; i < r.loss.size(); ++i) sum += up(p.upstream_loss, i, 1) * r.loss[i];
  for (std::size_t i = 0; i < r.lse.size(); ++i) {
    // Ignored rows have no gradient, whatever the upstreams.
    if (p.soft_targets.empty() && p.targets[i] == p.ignore_index) continue;
    if (std::isnan(r.lse[i])) continue;
    sum += up(p.upstream_lse, i, 0) * r.lse[i];
    sum += up(p.upstream_logprob, i, 0) * r.target_logprob[i];
    sum += up(p.upstream_entropy, i, 0) * r.entropy[i];
  }
  return sum;
}

void expect_central_differences(const ReferenceProblem& problem,
                                std::vector<double> ReferenceProblem::*variable,
                                const std::vector<double>& gradient, const char* name) {
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < (problem.*variable).size(); i += 3) {
    ReferenceProblem moved = problem;
    if (std::isnan((problem.*variable)[i])) {
      EXPECT_EQ(gradient[i], 0) << name << "[" << i << "] is padding";
      continue;
    }
    (moved.*variable)[i] += step;
    const double above = objective(moved);
    (moved.*variable)[i] -= 2 * step;
    const double below = objective(moved);
    const double slope = (above - below) / (2 * step);
    EXPECT_NEAR(gradient[i], slope, 2e-7 * (1 + std::abs(slope)) + 1e-8 * std::abs(above))
        << name << "[" << i << "]";
  }
}

TEST(Reference, GradientsAreCentralDifferencesOfItsOutputs) {
  int checked = 0;
  for (std::uint64_t seed = 1; checked < 25; ++seed) {
    Sample sample = random_sample(3, seed);
    ReferenceProblem& p = sample.data;
    if (sample.problem.dtype != DType::float64 || p.rows == 0 || p.rows > 12 || p.vocab > 40)
      continue;
    ++checked;
    // Logits of hundreds have nothing left to differentiate.
    for (double& x : p.hidden) x = std::fmod(x, 3);
    SCOPED_TRACE(describe_options(sample));
    const ReferenceResult exact = reference(p);
    expect_central_differences(p, &ReferenceProblem::hidden, exact.grad_hidden, "hidden");
    expect_central_differences(p, &ReferenceProblem::weight, exact.grad_weight, "weight");
    if (!p.bias.empty())
      expect_central_differences(p, &ReferenceProblem::bias, exact.grad_bias, "bias");
  }
}

// Equal terms drift as they are added up: a / V of a large vocabulary, whose sum is 1.
TEST(Reference, SmoothingOfALargeVocabularyIsAsExactAsOfASmallOne) {
  const std::vector<double> even(32000, 0.0);
  Sample sample = with_logits({even}, {3});
  sample.data.label_smoothing = 1;
  const ReferenceResult r = reference(sample.data);
  const double vocab = static_cast<double>(even.size());
  EXPECT_NEAR(r.loss[0], std::log(vocab), 4 * 0x1p-52 * std::log(vocab));
  for (const double du : r.grad_bias) ASSERT_NEAR(du, 0, 4 * 0x1p-52 / vocab);
}

TEST(Reference, AnInfiniteClassWeightIsOfItsClassAlone) {
  Sample sample = with_logits({{0, 1, 2, 3}}, {3});
  const ReferenceResult plain = reference(sample.data);
  sample.data.class_weights = {1, 1, HUGE_VAL, 1};
  const ReferenceResult r = reference(sample.data);
  EXPECT_EQ(r.loss, plain.loss);
  EXPECT_EQ(r.grad_weight, plain.grad_weight);
}

TEST(Reference, GivesTheClosedFormOfFourLogits) {
  const Sample sample = with_logits({{0, 1, 2, 3}}, {3});
  const ReferenceResult r = reference(sample.data);
  const double lse = std::log(1 + std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  EXPECT_NEAR(r.loss[0], lse - 3, 1e-15);
  EXPECT_NEAR(r.lse[0], lse, 1e-15);
  EXPECT_NEAR(r.grad_weight[1], std::exp(1 - lse), 1e-15);
  EXPECT_NEAR(r.grad_weight[3], std::exp(3 - lse) - 1, 1e-15);
  EXPECT_EQ(r.argmax[0], 3);
  EXPECT_EQ(r.correct[0], 1);
}

TEST(Reference, MeanDividesByTheWeightsOfOrdinaryRows) {
  Sample sample = with_logits({{0, 0}, {0, 0}, {0, 0}}, {0, -100, 1});
  sample.data.token_weights = {1, 5, 3};
  const ReferenceResult r = reference(sample.data);
  EXPECT_EQ(r.denominator, 4);
  EXPECT_NEAR(r.loss[0], std::log(2.0), 1e-15);
  EXPECT_EQ(r.counted_rows, 2);
}

TEST(Reference, NothingCountsIsZeroAndInvalidIsNaN) {
  EXPECT_EQ(reference(with_logits({{0, 1}}, {-100}).data).loss[0], 0);
  EXPECT_TRUE(std::isnan(reference(with_logits({{0, 1}}, {2}).data).loss[0]));
}

}  // namespace
}  // namespace shardloss::test
