// Buffers of more than 2^31 elements (case T28): the last row and the last vocabulary entry against
// fp64. Few rows are counted, so that the host can follow; all are computed.
#include <cmath>

#include "hashed_call.hpp"
#include "large.hpp"

namespace shardloss::test {
namespace {

/// A problem with its data, and the rows that are watched: those that count and one that does not.
struct Setting {
  Problem problem;
  HashedData data;
  std::vector<std::int64_t> watched;
};

/// Counts `counted` rows of the problem. The last row counts; the one before it is ignored.
Setting setting_of(const Problem& problem, float weight_scale,
                   const std::vector<std::int64_t>& counted) {
  Setting s{problem, {}, {}};
  s.data.hidden = {.seed = 1, .columns = problem.hidden, .scale = 1, .varied = true};
  s.data.weight = {.seed = 2, .columns = problem.hidden, .scale = weight_scale, .varied = false};
  s.data.targets.assign(static_cast<std::size_t>(problem.max_rows), ExactRows::ignored);
  for (std::size_t i = 0; i < counted.size(); ++i) {
    // Every other row has the last vocabulary entry, so that its gradient is not small.
    const auto other = hashed(3, static_cast<std::uint64_t>(counted[i]));
    s.data.targets[static_cast<std::size_t>(counted[i])] =
        i % 2 == 0 ? problem.vocab - 1
                   : static_cast<std::int64_t>(other % static_cast<std::uint64_t>(problem.vocab));
  }
  s.watched = counted;
  s.watched.push_back(problem.max_rows - 2);
  return s;
}

ExactRows exact_rows_of(const Setting& s) {
  std::vector<std::int64_t> targets;
  for (const std::int64_t row : s.watched)
    targets.push_back(s.data.targets[static_cast<std::size_t>(row)]);
  return {s.data.hidden, s.data.weight, s.problem.vocab, s.watched, targets};
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// Part of a gradient's row, by its norm.
void expect_row(const std::vector<double>& got, const std::vector<double>& want, double relative,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  std::vector<double> error;
  for (std::size_t i = 0; i < want.size(); ++i) error.push_back(got[i] - want[i]);
  EXPECT_LE(norm(error), relative * norm(want))
      << what << ": norms " << norm(got) << ", wanted " << norm(want);
}

/// The watched rows, the named rows of dW and the last row of dX, in the named columns.
void expect_exact(const HashedCall& call, const ExactRows& exact,
                  const std::vector<std::int64_t>& vocab_rows, const std::vector<Columns>& parts) {
  const Problem& problem = call.loss().problem();
  const double value = tolerance::row_factor * tolerance::value_coefficient(problem.dtype) *
                       tolerance::eps(problem.dtype);
  const double gradient =
      tolerance::row_factor *
      tolerance::allowed(problem, call.loss().plan().logits_dtype, exact.magnitude(), 1).gradient;
  const std::vector<double> lse = call.lse();
  const std::vector<double> row_loss = call.row_loss();
  for (std::size_t i = 0; i < exact.rows().size(); ++i) {
    const std::int64_t row = exact.rows()[i];
    const double size = std::abs(exact.lse(i)) + std::abs(exact.target_logit(i));
    EXPECT_NEAR(lse[static_cast<std::size_t>(row)], exact.lse(i), value * size) << "row " << row;
    EXPECT_NEAR(row_loss[static_cast<std::size_t>(row)], exact.loss(i), value * size)
        << "row " << row;
  }
  EXPECT_NEAR(call.mean(), exact.mean(), value * exact.mean());

  const std::size_t last = exact.rows().size() - 2;
  for (const Columns& part : parts) {
    const std::string at = ", columns from " + std::to_string(part.first);
    for (const std::size_t i : {std::size_t{0}, last})
      expect_row(call.grad_hidden(exact.rows()[i], part), exact.grad_hidden(i, part), gradient,
                 "dX of row " + std::to_string(exact.rows()[i]) + at);
    for (const double value_of_ignored : call.grad_hidden(exact.rows().back(), part))
      ASSERT_EQ(value_of_ignored, 0) << "dX of an ignored row" << at;
    for (const std::int64_t v : vocab_rows) {
      const std::vector<double> got = call.grad_weight(v, part);
      if (got.empty()) continue;  // another rank's
      expect_row(got, exact.grad_weight(v, part), gradient,
                 "dW of entry " + std::to_string(v) + at);
    }
  }
}

// ---- N V: the logits of one chunk. On two ranks each has as many.

Setting many_logits() {
  Problem problem = plain_problem(16385, 64, std::int64_t{131072} * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, problem.max_rows};
  problem.grad_weight = GradDType::float32;
  std::vector<std::int64_t> counted;
  for (std::int64_t row = 0; row < problem.max_rows; row += 256) counted.push_back(row);
  return setting_of(problem, 0.5f, counted);  // 16384, the last row, is one of them
}

void expect_many_logits(const Communicator& communicator, const Problem& problem, Way way) {
  Setting s = many_logits();
  s.problem = problem;
  ASSERT_GT(s.problem.max_rows * (s.problem.vocab / ranks()), past_int32);
  HashedCall call(communicator, s.problem, s.data);
  ASSERT_EQ(call.loss().plan().chunk_rows, s.problem.max_rows);
  call.run(way);
  const std::int64_t v = s.problem.vocab;
  expect_exact(call, exact_rows_of(s), {0, v / 2 - 1, v / 2, v - 1}, {{0, 64}});
}

TEST_F(Large, T28_LogitsPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(10);
  expect_many_logits(communicator(), many_logits().problem, Way::fused);
}

TEST_F(Large, T28_Float32LogitsPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(14);
  Problem problem = many_logits().problem;
  problem.accumulation = Accumulation::accurate;
  expect_many_logits(communicator(), problem, Way::fused);
}

TEST_F(Large, T28_KeptLogitsPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(14);
  Problem problem = many_logits().problem;
  problem.keep_logits = problem.max_rows;
  expect_many_logits(communicator(), problem, Way::two_step);
}

// ---- V D: the weight, its gradient and the sums of that. On two ranks each shard is as large.

const std::vector<Columns> ends_of_wide = {{0, 32}, {wide - 32, 32}};

TEST_F(Large, T28_WeightPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(24);
  const Setting s = setting_of(large_weight(), 1.0f / 16, {0, 3, 4, 5, 8});
  const std::int64_t v = s.problem.vocab;
  ASSERT_GT(v / ranks() * wide, past_int32);
  HashedCall call(communicator(), s.problem, s.data);
  call.run(Way::fused);
  const std::int64_t border = past_int32 / wide;  // of the first shard
  expect_exact(call, exact_rows_of(s), {0, border, border + 1, v - 1}, ends_of_wide);
}

// ---- N D: hidden states and their gradient.

Setting many_hidden(const Problem& problem) {
  std::vector<std::int64_t> counted;
  for (std::int64_t row = 0; row < problem.max_rows; row += 1024) counted.push_back(row);
  return setting_of(problem, 1.0f / 16, counted);  // 262144, the last row, is one of them
}

TEST_F(Large, T28_HiddenStatesPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(12);
  const Setting s = many_hidden(large_hidden());
  ASSERT_GT(s.problem.max_rows * wide, past_int32);
  HashedCall call(communicator(), s.problem, s.data);
  call.run(Way::fused);
  expect_exact(call, exact_rows_of(s), {0, s.problem.vocab - 1}, ends_of_wide);
}

// The chunk's own rows and the partial sums of their gradient are as large too.
TEST_F(Large, T28_IndexedHiddenStatesPastTwoToThe31InOneChunk) {
  SHARDLOSS_NEEDS_GPU_MEMORY(26);
  Problem problem = large_hidden();
  problem.row_index = true;
  problem.chunking.value = problem.max_rows;
  Setting s = many_hidden(problem);
  for (std::int64_t row = problem.max_rows - 1; row >= 0; --row) s.data.row_index.push_back(row);
  HashedCall call(communicator(), s.problem, s.data);
  call.run(Way::fused);
  expect_exact(call, exact_rows_of(s), {0, problem.vocab - 1}, ends_of_wide);
}

}  // namespace
}  // namespace shardloss::test
