// Rows: who brings which, how many, and which of them are computed; and how tensors lie in memory.
#include <algorithm>
#include <cmath>
#include <random>

#include "rank_test.hpp"

namespace shardloss::test {
namespace {

using Layouts = RankTest;

/// The answers of two calls on the same data, to within fp32 rounding.
void expect_same_numbers(const Answer& a, const Answer& b) {
  const auto near = [](const std::vector<double>& x, const std::vector<double>& y,
                       const char* what) {
    ASSERT_EQ(x.size(), y.size()) << what;
    double scale = 0;
    for (const double value : x)
      if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) && std::isnan(y[i])) continue;
      ASSERT_NEAR(x[i], y[i], 3e-6 * scale) << what << "[" << i << "]";
    }
  };
  near(a.loss, b.loss, "loss");
  near(a.row_loss, b.row_loss, "row_loss");
  near(a.lse, b.lse, "lse");
  near(a.grad_hidden, b.grad_hidden, "grad_hidden");
  near(a.grad_weight, b.grad_weight, "grad_weight");
  near(a.grad_bias, b.grad_bias, "grad_bias");
  EXPECT_EQ(a.argmax, b.argmax);
  EXPECT_EQ(a.counted_rows, b.counted_rows);
}

Problem sequence_problem() {
  Problem problem = plain_problem(29, 11, 100);
  problem.bias = true;
  problem.label_smoothing = 0.1;
  problem.chunking = {Chunking::Rule::rows, 6};
  return problem;
}

TEST_F(Layouts, T35_RowShardedGivesTheNumbersOfReplicated) {
  Sample replicated = fill(sequence_problem(), ranks(), 1);
  Sample sharded = replicated;
  sharded.problem.layout = Layout::row_sharded;
  for (int r = 0; r < ranks(); ++r)
    sharded.split.push_back(29 / ranks() + (r < 29 % ranks() ? 1 : 0));
  for (Way way : {Way::fused, Way::two_step})
    expect_same_numbers(answer_of(replicated, communicator(), way),
                        answer_of(sharded, communicator(), way));
}

/// Rows at random, half of them on the last rank, none on `hole` where another may hold them.
std::vector<std::int64_t> split_around(std::int64_t rows, int hole, std::mt19937& random) {
  const auto count = static_cast<unsigned>(ranks());
  std::vector<std::int64_t> split(count, 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    const bool last = random() % 2 == 0;
    auto owner = static_cast<unsigned>(random() % count);
    if (last) owner = count - 1;
    if (owner == static_cast<unsigned>(hole)) owner = (owner + 1) % count;
    ++split[owner];
  }
  return split;
}

TEST_F(Layouts, T35_RandomProblemsGiveTheSameNumbersInBothLayouts) {
  int seen = 0;
  std::mt19937 random(35);
  for (std::uint64_t seed = 3500; seen < 12; ++seed) {
    Sample replicated = random_sample(ranks(), seed);
    if (on_gpu() && replicated.problem.dtype == DType::float64) continue;
    if (replicated.data.rows == 0) continue;
    ++seen;
    replicated.problem.layout = Layout::replicated;
    replicated.split.clear();
    Sample sharded = replicated;
    sharded.problem.layout = Layout::row_sharded;
    const Loss together = make(replicated), apart = make(sharded);
    for (const Way way : {Way::fused, Way::two_step}) {
      const auto answer = [&](const Loss& loss, const Sample& sample) {
        const Tensors tensors = place(sample);
        run(loss, tensors, way);
        return whole(sample, tensors.answer(), ranks());
      };
      const Answer want = answer(together, replicated);
      EXPECT_EQ(differences(replicated, want, together.plan()), "") << describe_options(replicated);
      for (int draw = 0; draw < 2; ++draw) {
        sharded.split = split_around(sharded.data.rows, (seen + draw) % ranks(), random);
        SCOPED_TRACE((way == Way::fused ? "fused " : "two_step ") + describe_options(sharded));
        const Answer got = answer(apart, sharded);
        EXPECT_EQ(differences(sharded, got, apart.plan()), "");
        EXPECT_EQ(disagreements(sharded, got, want, apart.plan(), 1), "");
      }
    }
  }
}

TEST_F(Layouts, RanksMayBringNoRows) {
  Sample sample = fill(sequence_problem(), ranks(), 2);
  sample.problem.layout = Layout::row_sharded;
  for (int holder = 0; holder < ranks(); ++holder) {
    sample.split.assign(static_cast<std::size_t>(ranks()), 0);
    sample.split[static_cast<std::size_t>(holder)] = 29;
    expect_reference(sample);
  }
}

TEST_F(Layouts, ChunksMayBeSmallerThanTheGroup) {
  for (std::int64_t rows : {1, 2}) {
    Problem problem = sequence_problem();
    problem.layout = Layout::row_sharded;
    problem.chunking.value = rows;
    expect_reference(fill(problem, ranks(), 3));
  }
}

TEST_F(Layouts, AWholeRankOfIgnoredRowsIsNotCounted) {
  // Case of axolotl 3026: rank 0 has nothing that counts, rank 1 losses 1, 2, 3: the mean is 2.
  Problem problem = plain_problem(6, 6, 2);
  problem.layout = Layout::row_sharded;
  std::vector<std::vector<double>> logits(6, {0, 0});
  const double losses[] = {1, 2, 3};
  for (std::size_t i = 0; i < 3; ++i)  // -log p_0 = log(1 + e^x) = loss
    logits[3 + i] = {0, std::log(std::expm1(losses[i]))};
  Sample sample = with_logits(logits, {-100, -100, -100, 0, 0, 0}, problem);
  for (double& w : sample.data.weight) w = static_cast<float>(w);
  sample.split.assign(static_cast<std::size_t>(ranks()), 0);
  sample.split.front() = 3;
  sample.split.back() += 3;
  const Answer answer = answer_of(sample, communicator());
  EXPECT_NEAR(answer.loss[0], 2, 1e-6);
  EXPECT_EQ(answer.counted_rows[0], 3);
  expect_reference(sample);
}

TEST_F(Layouts, RowIndexGivesTheNumbersOfTheMaskedFullBatch) {
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = sequence_problem();
    problem.row_index = true;
    problem.layout = layout;
    Sample indexed = fill(problem, ranks(), 4);
    indexed.data.row_index.emplace();
    for (std::int64_t i : {1, 2, 8, 9, 17, 26}) {
      indexed.data.row_index->push_back(i);
      indexed.data.targets[static_cast<std::size_t>(i)] = 3 * i;
    }
    Sample masked = indexed;
    masked.data.row_index.reset();
    for (std::int64_t i = 0; i < 29; ++i)
      if (std::find(indexed.data.row_index->begin(), indexed.data.row_index->end(), i) ==
          indexed.data.row_index->end())
        masked.data.targets[static_cast<std::size_t>(i)] = -100;
    const Answer some = answer_of(indexed, communicator());
    Answer all = answer_of(masked, communicator());
    for (std::size_t i = 0; i < all.lse.size(); ++i)
      if (masked.data.targets[i] == -100) {
        EXPECT_TRUE(std::isnan(some.lse[i])) << "not computed, so not known";
        EXPECT_EQ(some.argmax[i], -1);
        all.lse[i] = some.lse[i];
        all.argmax[i] = -1;
      }
    expect_same_numbers(some, all);
    expect_reference(indexed);
  }
}

TEST_F(Layouts, RowIndexMayNameNoneAllAndInAnyOrder) {
  Problem problem = sequence_problem();
  problem.row_index = true;
  Sample sample = fill(problem, ranks(), 5);
  for (const std::vector<std::int64_t>& index :
       {std::vector<std::int64_t>{}, std::vector<std::int64_t>{28, 3, 14, 0, 7}}) {
    sample.data.row_index = index;
    expect_reference(sample);
  }
  sample.data.row_index.emplace();
  for (std::int64_t i = 28; i >= 0; --i) sample.data.row_index->push_back(i);
  expect_reference(sample);
}

TEST_F(Layouts, CallsMayBringFewerRowsThanTheProblemAllows) {
  const Sample most = fill(sequence_problem(), ranks(), 6);
  const Loss loss = make(most);
  for (std::int64_t rows : {0, 1, 6, 7, 28, 29}) {
    const Sample sample = fill_rows(sequence_problem(), rows, ranks(), 7);
    const Tensors tensors = place(sample);
    run(loss, tensors, rows % 2 == 0 ? Way::fused : Way::two_step);
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "")
        << rows << " rows";
  }
}

TEST_F(Layouts, NoRowsGiveLossZeroAndZeroGradients) {
  for (Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
    for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
      Problem problem = sequence_problem();
      problem.layout = layout;
      problem.reduction = reduction;
      const Sample sample = fill_rows(problem, 0, ranks(), 8);
      for (Way way : {Way::fused, Way::two_step}) {
        const Answer answer = answer_of(sample, communicator(), way);
        const std::vector<double> nothing(reduction == Reduction::none ? 0 : 1, 0.0);
        EXPECT_EQ(answer.loss, nothing);
        EXPECT_EQ(answer.counted_rows, std::vector<std::int64_t>{0});
        for (const double value : answer.grad_weight) ASSERT_EQ(value, 0);
        for (const double value : answer.grad_bias) ASSERT_EQ(value, 0);
      }
    }
  }
  Problem empty = sequence_problem();
  empty.max_rows = 0;
  expect_reference(fill(empty, ranks(), 8));
}

TEST_F(Layouts, ShardsMayBeEmptyOneWideOrUneven) {
  for (int holder = 0; holder < ranks(); ++holder) {
    Problem problem = plain_problem(9, 7, 13);
    problem.shard_widths.assign(static_cast<std::size_t>(ranks()), 0);
    problem.shard_widths[static_cast<std::size_t>(holder)] = 13;
    expect_reference(fill(problem, ranks(), 9));
    problem.vocab_padded = 16;  // and a shard of padding alone
    if (ranks() > 1) {
      problem.shard_widths.back() += 3;
      expect_reference(fill(problem, ranks(), 9));
    }
  }
  expect_reference(fill(plain_problem(9, 7, ranks()), ranks(), 10));  // V_r = 1
  expect_reference(fill(plain_problem(9, 7, 1), ranks(), 11));        // V = 1
}

TEST_F(Layouts, T30_StridesGiveTheBitsOfContiguousTensors) {
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = sequence_problem();
    problem.layout = layout;
    problem.reduction = Reduction::none;
    Sample sample = fill(problem, ranks(), 12);
    sample.data.token_weights.assign(29, 0.5);
    sample.data.upstream_loss.assign(29, 2);
    const Answer plain = answer_of(sample, communicator());
    Style style;
    style.pad = 5;
    style.value_stride = 3;
    style.target_stride = 2;
    for (DType dtype : {DType::int32, DType::int64}) {
      style.target_dtype = dtype;
      expect_reference(sample, style);
      const Answer strided = answer_of(sample, communicator(), Way::fused, style);
      EXPECT_EQ(strided.loss, plain.loss);
      EXPECT_EQ(strided.grad_hidden, plain.grad_hidden);
      EXPECT_EQ(strided.grad_weight, plain.grad_weight);
    }
  }
}

TEST_F(Layouts, BatchAndSequenceMayBeSwappedByStrides) {
  // hidden stored [batch, sequence, D] and read [sequence, batch, D]: rows of one sequence position
  // are a row stride of sequence x D apart, so each position is a call of its own.
  constexpr std::int64_t batch = 3, sequence = 4;
  const Sample sample = fill(plain_problem(batch * sequence, 5, 17), ranks(), 13);
  const Loss loss = make(sample);
  const Tensors tensors = place(sample);
  run(loss, tensors, Way::fused);
  const std::vector<double> want = tensors.answer().row_loss;
  for (std::int64_t s = 0; s < sequence; ++s) {
    Inputs in = tensors.inputs();
    const auto* hidden = static_cast<const std::byte*>(in.hidden.data());
    const auto* targets = static_cast<const std::byte*>(in.targets.data());
    in.hidden =
        ConstTensor(hidden + s * 5 * 4, DType::float32, {batch, 5}, {sequence * 5, 1}, device());
    in.targets = ConstTensor(targets + s * 8, DType::int64, batch, sequence, device());
    const DeviceArray row_loss(DType::float32, batch, 1, device());
    Outputs out;
    out.row_loss = row_loss.tensor();
    loss.forward(in, out, nullptr, {test_stream()});
    loss.wait(test_stream());
    const std::vector<double> got = row_loss.read();
    for (std::int64_t b = 0; b < batch; ++b)
      EXPECT_NEAR(got[static_cast<std::size_t>(b)],
                  want[static_cast<std::size_t>(b * sequence + s)], 1e-5);
  }
}

}  // namespace
}  // namespace shardloss::test
