// A problem of realistic size gives the same bits in every run, whoever chose the products, and the
// same numbers whichever way it is computed.
#include <cmath>

#include "gpu_test.hpp"
#include "hashed_call.hpp"

namespace shardloss::test {
namespace {

using Repeated = GpuTest;

Problem realistic(Layout layout, GemmChoice gemm, DType dtype = DType::bfloat16) {
  Problem problem = plain_problem(1024, 512, 32003, dtype);
  problem.layout = layout;
  problem.gemm = gemm;
  problem.chunking = {Chunking::Rule::rows, 256};
  problem.keep_logits = 512;
  return problem;
}

HashedData data_of(const Problem& problem) {
  HashedData data;
  data.hidden = {.seed = 11, .columns = problem.hidden, .scale = 1, .varied = true};
  data.weight = {.seed = 12, .columns = problem.hidden, .scale = 0.25f, .varied = false};
  for (std::int64_t row = 0; row < problem.max_rows; ++row) {
    const std::uint64_t number = hashed(13, static_cast<std::uint64_t>(row));
    data.targets.push_back(number % 8 == 0
                               ? problem.ignore_index
                               : static_cast<std::int64_t>(number >> 16) % problem.vocab);
  }
  return data;
}

HashedCall call_of(const Communicator& communicator, const Problem& problem) {
  return HashedCall(communicator, problem, data_of(problem));
}

TEST_F(Repeated, T33_EightRunsGiveTheSameBits) {
  for (const GemmChoice gemm : {GemmChoice::heuristic, GemmChoice::tuned}) {
    for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
      for (const Way way : {Way::fused, Way::two_step}) {
        SCOPED_TRACE(std::string(name(layout)) + (way == Way::fused ? " fused" : " two_step") +
                     (gemm == GemmChoice::tuned ? " tuned" : " heuristic"));
        const Problem problem = realistic(layout, gemm);
        HashedCall call = call_of(communicator(), problem);
        call.run(way);
        const std::vector<std::byte> first = call.bytes();
        EXPECT_TRUE(std::isfinite(call.mean()));
        for (int i = 1; i < 8; ++i) {
          call.run(way);
          ASSERT_TRUE(call.bytes() == first) << "run " << i;
        }
        HashedCall fresh = call_of(communicator(), problem);
        fresh.run(way);
        EXPECT_TRUE(fresh.bytes() == first) << "a fresh object";
        const double mean = call.mean();
        EXPECT_TRUE(same_everywhere(std::as_bytes(std::span(&mean, 1))));
      }
    }
  }
}

double norm_of_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

/// Two computations of the same may each be off by what is allowed to one.
void expect_same_numbers(const HashedCall& a, const HashedCall& b) {
  const Problem& problem = a.loss().problem();
  constexpr double largest_logit = 12;
  const tolerance::Allowed allowed =
      tolerance::allowed(problem, a.loss().plan().logits_dtype, largest_logit, 1);
  const auto expect = [&](const char* what, const std::vector<double>& left,
                          const std::vector<double>& right, double relative) {
    ASSERT_EQ(left.size(), right.size()) << what;
    const std::vector<double> zeros(left.size(), 0.0);
    const double size = norm_of_difference(left, zeros);
    EXPECT_GT(size, 0) << what;
    EXPECT_LE(norm_of_difference(left, right), 2 * relative * size) << what;
  };
  expect("loss", {a.mean()}, {b.mean()}, allowed.value);
  expect("row_loss", a.row_loss(), b.row_loss(), allowed.value);
  expect("lse", a.lse(), b.lse(), allowed.value);
  expect("grad_hidden", a.grad_hidden(), b.grad_hidden(), allowed.gradient);
  expect("grad_weight", a.grad_weight(), b.grad_weight(), allowed.gradient);
}

TEST_F(Repeated, BothWaysGiveTheSameNumbers) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    HashedCall fused = call_of(communicator(), realistic(layout, GemmChoice::heuristic));
    HashedCall two_step = call_of(communicator(), realistic(layout, GemmChoice::heuristic));
    fused.run(Way::fused);
    two_step.run(Way::two_step);
    expect_same_numbers(fused, two_step);
  }
}

TEST_F(Repeated, TunedProductsGiveTheSameNumbersAsHeuristicOnes) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(name(dtype));
    // Of a size that no other test has had timed: the cache would give that to both.
    Problem problem = realistic(Layout::replicated, GemmChoice::heuristic, dtype);
    problem.chunking.value = 192;
    HashedCall heuristic = call_of(communicator(), problem);
    problem.gemm = GemmChoice::tuned;
    HashedCall tuned = call_of(communicator(), problem);
    for (const PlannedGemm& gemm : heuristic.loss().plan().gemms)
      EXPECT_NE(gemm.algorithm.find("cublasLt's first"), std::string::npos) << gemm.algorithm;
    for (const PlannedGemm& gemm : tuned.loss().plan().gemms)
      EXPECT_NE(gemm.algorithm.find("timed"), std::string::npos) << gemm.algorithm;
    heuristic.run(Way::fused);
    tuned.run(Way::fused);
    expect_same_numbers(heuristic, tuned);
  }
}

// The split of the rows over ranks changes where they are, not what comes out.
TEST_F(Repeated, BothLayoutsGiveTheSameMean) {
  HashedCall replicated =
      call_of(communicator(), realistic(Layout::replicated, GemmChoice::heuristic));
  HashedCall sharded =
      call_of(communicator(), realistic(Layout::row_sharded, GemmChoice::heuristic));
  replicated.run(Way::fused);
  sharded.run(Way::fused);
  const double relative =
      tolerance::value_coefficient(DType::bfloat16) * tolerance::eps(DType::bfloat16);
  EXPECT_NEAR(replicated.mean(), sharded.mean(), 2 * relative * std::abs(replicated.mean()));
}

}  // namespace
}  // namespace shardloss::test
