// Rows whose statistics and gradient are one kernel: on one rank, bfloat16, the plain objective,
// nothing asked for that the kernel does not make. How many blocks hold a row follows its length.
// On two ranks the same problems go the long way.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu_test.hpp"

namespace shardloss::test {
namespace {

class FusedRows : public GpuTest {
 protected:
  /// Gradients and outputs against the reference.
  void expect_right(const Sample& sample, bool grad_weight = true) const {
    Style style;
    style.argmax = false;
    style.grad_weight = grad_weight;  // its bias gradient would go the long way
    expect_reference(sample, Way::fused, style);
  }
};

/// One block of an H200 holds 18424 columns of a row with five others beside it, eight blocks hold
/// 303040 with two others.
constexpr std::int64_t row_lengths[] = {1,     7,     8,      18419,  18424,  18433,
                                        36865, 73720, 100003, 147393, 303037, 303049};

Problem problem_of(std::int64_t columns) {
  Problem problem = plain_problem(7, 4, columns * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, 4};
  problem.grad_weight = GradDType::float32;
  return problem;
}

TEST_F(FusedRows, OfEveryLength) {
  for (const std::int64_t columns : row_lengths) {
    SCOPED_TRACE(columns);
    expect_right(fill(problem_of(columns), ranks(), 11));
  }
}

TEST_F(FusedRows, WithEverythingThatThePlainObjectiveHas) {
  for (const std::int64_t columns : {35, 40003, 100003}) {
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      SCOPED_TRACE(columns);
      Problem problem = problem_of(columns);
      problem.reduction = reduction;
      problem.logit_scale = 0.7;
      problem.z_loss = 0.01;
      problem.class_weights = true;
      problem.bias = true;
      Sample sample = fill(problem, ranks(), 12);
      for (std::int64_t v = 0; v < problem.vocab; ++v)
        sample.data.class_weights.push_back(0.5 + static_cast<double>(v % 4) / 4);
      for (std::int64_t i = 0; i < problem.max_rows; ++i) {
        sample.data.upstream_lse.push_back(0.25 * static_cast<double>(i % 3));
        sample.data.upstream_logprob.push_back(0.5 - 0.25 * static_cast<double>(i % 4));
      }
      expect_right(sample, false);
    }
  }
}

/// Masks are -inf, or finite and so low that M log2 e is no exponent of a float; whole blocks of a
/// row, and whole rows, have nothing else.
TEST_F(FusedRows, MaskedByTheBias) {
  const double infinity = std::numeric_limits<double>::infinity();
  constexpr std::int64_t columns = 100003;
  for (const double mask : {-infinity, -10066329600.0}) {
    for (const std::int64_t kept : {std::int64_t{0}, std::int64_t{3}, columns / 2}) {
      if (kept == 0 && std::isinf(mask)) continue;  // has no softmax: T29 and its kin
      SCOPED_TRACE(kept);
      Problem problem = problem_of(columns);
      problem.bias = true;
      Sample sample = fill(problem, ranks(), 13);
      std::fill(sample.data.hidden.begin(), sample.data.hidden.end(), 0);  // logits are the bias
      sample.data.bias.assign(static_cast<std::size_t>(problem.vocab), mask);
      for (std::int64_t v = 0; v < kept; ++v) sample.data.bias[static_cast<std::size_t>(v)] = 0;
      for (std::size_t i = 0; i < sample.data.targets.size(); ++i)
        if (sample.data.targets[i] >= 0) sample.data.targets[i] = static_cast<std::int64_t>(i) % 3;
      expect_right(sample, false);
    }
  }
}

}  // namespace
}  // namespace shardloss::test
