// Rows whose statistics and gradient are one kernel: on one rank, bfloat16, the plain objective,
// nothing asked for that the kernel does not make. How many blocks hold a row follows its length.
// On two ranks the same problems go the long way.
#include <algorithm>
#include <cmath>
#include <limits>

#include "captured_graph.hpp"

namespace shardloss::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Problem problem_of(std::int64_t columns) {
  Problem problem = plain_problem(7, 4, columns * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, 4};
  problem.grad_weight = GradDType::float32;
  return problem;
}

class FusedRows : public GpuTest {
 protected:
  /// Gradients and outputs against the reference.
  void expect_right(const Sample& sample, const Style& style = without_argmax()) const {
    expect_reference(sample, Way::fused, style);
  }

  /// What a forward_backward enqueues.
  std::size_t nodes(const Problem& problem, const Style& style) const {
    const Sample sample = fill(problem, ranks(), 10);
    const Loss loss = make(sample);
    const Tensors tensors = place(sample, style);
    Saved unused = loss.make_saved();
    enqueue(loss, tensors, Way::fused, unused);
    loss.wait(test_stream());
    const CapturedGraph graph([&] { enqueue(loss, tensors, Way::fused, unused); });
    return graph.nodes();
  }
};

TEST_F(FusedRows, AreTakenWhereTheyFit) {
  int clusters = 0;
  SHARDLOSS_TEST_CUDA_CALL(
      cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device().index));
  if (clusters == 0) GTEST_SKIP() << "the device has no clusters";
  for (const std::int64_t columns : {1003, 40003}) {
    const std::size_t one = nodes(problem_of(columns), without_argmax());
    const std::size_t three = nodes(problem_of(columns), {});
    if (ranks() == 1)
      EXPECT_LT(one, three) << columns;
    else
      EXPECT_EQ(one, three) << columns;
  }
  Problem capped = problem_of(1003);
  capped.softcap = 5;
  EXPECT_EQ(nodes(capped, without_argmax()), nodes(capped, {}));
  EXPECT_EQ(nodes(problem_of(1000003), without_argmax()), nodes(problem_of(1000003), {}));
}

// A block of an H200 holds 18432 columns of a row with five others beside it, eight blocks hold
// 303104 with two others.
TEST_F(FusedRows, OfEveryLength) {
  for (const std::int64_t columns : {1, 7, 8, 18431, 18432, 18433, 36864, 36865, 73728, 73729,
                                     100003, 147456, 147457, 303104, 303105}) {
    SCOPED_TRACE(columns);
    expect_right(fill(problem_of(columns), ranks(), 11));
  }
}

TEST_F(FusedRows, OfRandomProblems) {
  int with_weight = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Sample sample = random_plain_sample(ranks(), seed);
    SCOPED_TRACE(describe_options(sample));
    Style style = without_argmax();
    style.accumulate = seed % 3 == 0;
    style.target_dtype = seed % 5 == 0 ? DType::int32 : DType::int64;
    style.pad = seed % 7 == 0 ? 3 : 0;
    style.grad_hidden = seed % 4 != 0;
    style.grad_weight = !sample.problem.bias;  // its bias gradient would go the long way
    with_weight += style.grad_weight ? 1 : 0;
    expect_right(sample, style);
  }
  EXPECT_GT(with_weight, 20);
}

// Masks are -inf, or finite and so low that the fraction of M log2 e is lost in a float; whole
// blocks of a row, and whole rows, have nothing else.
TEST_F(FusedRows, MaskedByTheBias) {
  constexpr std::int64_t columns = 100003;
  Style style = without_argmax();
  style.grad_weight = false;
  for (const double mask : {-infinity, -10066329600.0, -0x1.fep127}) {
    for (const std::int64_t kept : {std::int64_t{0}, std::int64_t{3}, columns / 2}) {
      if (kept == 0 && std::isinf(mask)) continue;  // has no softmax
      SCOPED_TRACE(kept);
      Problem problem = problem_of(columns);
      problem.bias = true;
      Sample sample = fill(problem, ranks(), 13);
      std::fill(sample.data.hidden.begin(), sample.data.hidden.end(), 0);  // logits are the bias
      sample.data.bias.assign(static_cast<std::size_t>(problem.vocab), mask);
      for (std::int64_t v = 0; v < kept; ++v) sample.data.bias[static_cast<std::size_t>(v)] = 0;
      for (std::size_t i = 0; i < sample.data.targets.size(); ++i)
        if (sample.data.targets[i] >= 0) sample.data.targets[i] = static_cast<std::int64_t>(i) % 3;
      expect_right(sample, style);
    }
  }
}

// The values of a row that cannot be computed stay in it; in which block they arise is all one.
TEST_F(FusedRows, NaNAndInfinityStayInTheirRow) {
  constexpr std::size_t bad_row = 2;
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), infinity}) {
    Problem problem = problem_of(100003);
    problem.reduction = Reduction::none;
    Sample sample = fill(problem, ranks(), 14);
    const Loss loss = make(sample);
    const auto answer = [&] {
      const Tensors tensors = place(sample, without_argmax());
      run(loss, tensors, Way::fused);
      return whole(sample, tensors.answer(), ranks());
    };
    for (std::int64_t& target : sample.data.targets) target = 3;
    const Answer clean = answer();
    sample.data.hidden[bad_row * 4 + 1] = value;
    const Answer got = answer();
    for (std::size_t i = 0; i < 7; ++i) {
      if (i == bad_row)
        EXPECT_TRUE(std::isnan(got.row_loss[i]));
      else
        EXPECT_EQ(got.row_loss[i], clean.row_loss[i]) << i;
      for (std::size_t k = 0; k < 4; ++k) {
        if (i == bad_row)
          EXPECT_TRUE(std::isnan(got.grad_hidden[i * 4 + k]));
        else
          EXPECT_EQ(got.grad_hidden[i * 4 + k], clean.grad_hidden[i * 4 + k]) << i;
      }
    }
  }
}

TEST_F(FusedRows, InvalidTargets) {
  for (const std::int64_t target : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                    std::numeric_limits<std::int64_t>::max()}) {
    Problem problem = problem_of(100003);
    problem.throw_invalid_target = false;
    Sample sample = fill(problem, ranks(), 15);
    sample.data.targets[4] = target;
    expect_right(sample);
  }
}

TEST_F(FusedRows, ReplayedGiveTheSameBits) {
  const Sample sample = fill(problem_of(100003), ranks(), 16);
  const Loss loss = make(sample);
  Tensors tensors = place(sample, without_argmax());
  Saved unused = loss.make_saved();
  enqueue(loss, tensors, Way::fused, unused);
  loss.wait(test_stream());
  const std::vector<std::byte> eager = tensors.all_bytes();
  const CapturedGraph graph([&] { enqueue(loss, tensors, Way::fused, unused); });
  for (int i = 0; i < 8; ++i) {
    tensors.reset();
    graph.replay();
    loss.wait(test_stream());
    ASSERT_EQ(tensors.all_bytes(), eager) << i;
  }
}

}  // namespace
}  // namespace shardloss::test
