// The vocabulary-parallel embedding, alone and tied to the head.
#include "shardloss/embedding.hpp"

#include <cmath>
#include <limits>

#include "elements.hpp"
#include "rank_test.hpp"
#include "uneven_split.hpp"

namespace shardloss::test {
namespace {

/// Ids, a weight and upstream gradients, whole, and this rank's tensors of them.
struct Lookup {
  Lookup(const Problem& problem, std::int64_t rows, DType id_dtype = DType::int64,
         std::int64_t id_stride = 1, const std::vector<std::int64_t>& split = {})
      : sample(fill_rows(problem, rows, ranks(), 21)) {
    if (!split.empty()) sample.split = split;
    const std::int64_t d = problem.hidden;
    for (std::int64_t i = 0; i < rows; ++i)
      whole_ids.push_back(i % 4 == 0 ? 3 % problem.vocab : (i * 7) % problem.vocab);
    const std::int64_t first = sample.first_row(rank());
    const std::int64_t own = sample.own_rows(rank());
    const Shard shard = make_shards(problem, ranks())[static_cast<std::size_t>(rank())];
    ids = DeviceArray(id_dtype, own, id_stride, device());
    ids.write(own_ids());
    weight = DeviceArray(problem.dtype, shard.width, d, d + 2, device());
    weight.write(part(sample.data.weight, shard.first, shard.width, d));
    output = DeviceArray(problem.dtype, own, d, d + 1, device());
    // Every rank's gradient of the output: whole (replicated), or its own rows.
    for (std::int64_t i = 0; i < rows * d; ++i)
      whole_grad.push_back(static_cast<double>((i * 29) % 17 - 8) / 16);
    grad_output = DeviceArray(problem.dtype, own, d, d, device());
    grad_output.write(part(whole_grad, first, own, d));
    grad_weight =
        DeviceArray(problem.grad_weight == GradDType::float32 ? DType::float32 : problem.dtype,
                    shard.width, d, d + 2, device());
    grad_weight.write(std::vector<double>(static_cast<std::size_t>(shard.width * d), 0.25));
    for (int r = 0; r < ranks() && problem.layout == Layout::row_sharded; ++r)
      rows_per_rank.push_back(sample.own_rows(r));
  }

  std::vector<std::int64_t> own_ids() const {
    const auto begin = whole_ids.begin() + sample.first_row(rank());
    return {begin, begin + sample.own_rows(rank())};
  }

  static std::vector<double> part(const std::vector<double>& values, std::int64_t first,
                                  std::int64_t count, std::int64_t width) {
    const auto begin = values.begin() + first * width;
    return {begin, begin + count * width};
  }

  void expect_output() const {
    const std::int64_t d = sample.problem.hidden;
    std::vector<double> want;
    for (std::int64_t i = 0; i < sample.own_rows(rank()); ++i) {
      const std::int64_t id = whole_ids[static_cast<std::size_t>(sample.first_row(rank()) + i)];
      const bool valid = id >= 0 && id < sample.problem.vocab;
      for (std::int64_t k = 0; k < d; ++k)
        want.push_back(valid ? sample.data.weight[static_cast<std::size_t>(id * d + k)] : 0);
    }
    EXPECT_EQ(output.read(), want) << "a look-up is exact";
    EXPECT_TRUE(output.intact());
  }

  /// grad_weight = before + the sum over rows of each id, to within the dtype's rounding.
  void expect_gradient(double before) const {
    const Problem& p = sample.problem;
    const Shard shard = make_shards(p, ranks())[static_cast<std::size_t>(rank())];
    const std::int64_t d = p.hidden;
    std::vector<double> want(static_cast<std::size_t>(shard.width * d), before);
    for (std::size_t i = 0; i < whole_ids.size(); ++i) {
      const std::int64_t row = whole_ids[i] - shard.first;
      if (whole_ids[i] < 0 || row < 0 || row >= shard.vocab) continue;
      for (std::int64_t k = 0; k < d; ++k)
        want[static_cast<std::size_t>(row * d + k)] +=
            whole_grad[i * static_cast<std::size_t>(d) + static_cast<std::size_t>(k)];
    }
    const std::vector<double> got = grad_weight.read();
    ASSERT_EQ(got.size(), want.size());
    const bool short_sums = p.grad_weight == GradDType::same && size_of(p.dtype) == 2;
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], short_sums ? 0.02 * (1 + std::abs(want[i])) : 1e-6);
    EXPECT_TRUE(grad_weight.intact());
  }

  Sample sample;
  std::vector<std::int64_t> whole_ids;
  std::vector<double> whole_grad;
  std::vector<std::int64_t> rows_per_rank;
  DeviceArray ids, weight, output, grad_output, grad_weight;
};

class Embedding : public RankTest {
 protected:
  static Problem problem(DType dtype = DType::float32, Layout layout = Layout::replicated) {
    Problem problem = plain_problem(29, 11, 37, dtype);
    problem.vocab_padded = 40;
    problem.layout = layout;
    problem.chunking = {Chunking::Rule::rows, 6};
    return problem;
  }

  void forward(const VocabParallelEmbedding& embedding, const Lookup& lookup) const {
    embedding.forward(lookup.ids.tensor(), lookup.weight.tensor(), lookup.output.tensor(),
                      lookup.rows_per_rank, test_stream());
    embedding.wait(test_stream());
  }
  void backward(const VocabParallelEmbedding& embedding, const Lookup& lookup,
                bool accumulate = true) const {
    embedding.backward(lookup.ids.tensor(), lookup.grad_output.tensor(),
                       lookup.grad_weight.tensor(), accumulate, lookup.rows_per_rank,
                       test_stream());
    embedding.wait(test_stream());
  }
  VocabParallelEmbedding make_embedding(const Problem& problem) const {
    return {problem, communicator(), device()};
  }
  /// No id outside the vocabulary is taken for padding.
  void expect_refused(const VocabParallelEmbedding& embedding, Problem p) const {
    p.soft_targets = false;  // a sample would have no hard ones
    for (std::int64_t bad : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}}) {
      Lookup lookup(p, 29);
      lookup.whole_ids[0] = bad;
      lookup.ids.write(lookup.own_ids());
      expect_error(ErrorCode::invalid_target, {"row 0", std::to_string(bad)},
                   [&] { forward(embedding, lookup); });
      lookup.expect_output();
    }
  }
};

TEST_F(Embedding, LooksUpExactlyWhateverShardHoldsTheId) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
      const Lookup lookup(problem(dtype, layout), 29);
      forward(make_embedding(lookup.sample.problem), lookup);
      lookup.expect_output();
      const bool same = same_everywhere(lookup.output.bytes());
      EXPECT_TRUE(same || layout == Layout::row_sharded);
    }
}

TEST_F(Embedding, TakesInt32AndStridedIds) {
  const Lookup lookup(problem(), 29, DType::int32, 3);
  forward(make_embedding(lookup.sample.problem), lookup);
  lookup.expect_output();
  const Lookup strided(problem(), 29, DType::int64, 2);
  forward(make_embedding(strided.sample.problem), strided);
  strided.expect_output();
}

TEST_F(Embedding, BackwardAddsEveryRowToItsId) {
  for (DType dtype : {DType::float32, DType::bfloat16})
    for (Layout layout : {Layout::replicated, Layout::row_sharded})
      for (GradDType grad : {GradDType::same, GradDType::float32}) {
        Problem p = problem(dtype, layout);
        p.grad_weight = grad;
        const Lookup lookup(p, 29);
        const VocabParallelEmbedding embedding = make_embedding(p);
        backward(embedding, lookup);
        lookup.expect_gradient(0.25);
        backward(embedding, lookup, false);
        lookup.expect_gradient(0);
      }
}

TEST_F(Embedding, EightRunsGiveTheSameBits) {
  const Lookup lookup(problem(DType::bfloat16, Layout::row_sharded), 29);
  const VocabParallelEmbedding embedding = make_embedding(lookup.sample.problem);
  backward(embedding, lookup, false);
  const std::vector<std::byte> first = lookup.grad_weight.bytes();
  for (int i = 1; i < 8; ++i) {
    backward(embedding, lookup, false);
    ASSERT_EQ(lookup.grad_weight.bytes(), first);
  }
}

TEST_F(Embedding, RowsMayBeNoneOrFewerThanTheMost) {
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    const Problem p = problem(DType::float32, layout);
    const VocabParallelEmbedding embedding = make_embedding(p);
    for (std::int64_t rows : {0, 1, 7, 29}) {
      const Lookup lookup(p, rows);
      forward(embedding, lookup);
      lookup.expect_output();
      backward(embedding, lookup);
      lookup.expect_gradient(0.25);
    }
  }
}

TEST_F(Embedding, IdsOutsideTheVocabularyGiveZeroRowsAndAnErrorThatNamesThem) {
  Problem p = problem();
  const VocabParallelEmbedding embedding = make_embedding(p);
  for (std::int64_t bad :
       {std::int64_t{-1}, std::int64_t{37}, std::int64_t{39}, std::int64_t{1} << 31}) {
    Lookup lookup(p, 29);
    lookup.whole_ids[4] = bad;
    lookup.ids.write(lookup.whole_ids);
    expect_error(ErrorCode::invalid_target, {"4", std::to_string(bad)},
                 [&] { forward(embedding, lookup); });
    lookup.expect_output();
    EXPECT_FALSE(communicator().failed());
  }
  // Padding an input with ignore_index is silent.
  Lookup lookup(p, 29);
  lookup.whole_ids[4] = p.ignore_index;
  lookup.ids.write(lookup.whole_ids);
  EXPECT_NO_THROW(forward(embedding, lookup));
  lookup.expect_output();
  EXPECT_NO_THROW(backward(embedding, lookup));
  lookup.expect_gradient(0.25);
}

// It ignores targets: as an input it is a token like others.
TEST_F(Embedding, AnIgnoreIndexInsideTheVocabularyIsLookedUp) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem p = problem(DType::float32, layout);
    p.ignore_index = 3;
    const Lookup lookup(p, 29);
    const VocabParallelEmbedding embedding = make_embedding(p);
    forward(embedding, lookup);
    lookup.expect_output();
    backward(embedding, lookup);
    lookup.expect_gradient(0.25);
    expect_refused(embedding, p);
  }
}

TEST_F(Embedding, SoftTargetsOfTheProblemChangeNothing) {
  Problem p = problem();
  p.soft_targets = true;
  expect_refused(make_embedding(p), p);
}

TEST_F(Embedding, IdsThatDifferBetweenRanksAreAMismatchOnAll) {
  if (ranks() == 1 || on_gpu()) return;
  const VocabParallelEmbedding embedding = make_embedding(problem());
  Lookup lookup(problem(), 29);
  if (rank() == ranks() - 1) {
    lookup.whole_ids[2] = 30;
    lookup.ids.write(lookup.whole_ids);
  }
  expect_error(ErrorCode::mismatch, {"targets"}, [&] { forward(embedding, lookup); });
  const Lookup good(problem(), 29);
  forward(embedding, good);
  good.expect_output();
}

// One weight used by embedding and head, gradients of both fused into one fp32 buffer over two
// micro-batches.
TEST_F(Embedding, T31_TiedGradientIsTheSumOfEmbeddingAndHead) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const Way way : {Way::fused, Way::two_step}) {
        SCOPED_TRACE(std::string(name(layout)) + " " + std::string(name(dtype)) +
                     (way == Way::fused ? " fused" : " two_step"));
        Problem p = problem(dtype, layout);
        p.grad_weight = GradDType::float32;
        std::vector<std::int64_t> split;
        if (layout == Layout::row_sharded) split = uneven_split(29, ranks(), ranks() / 2);
        Lookup lookup(p, 29, DType::int64, 1, split);
        const Loss loss(p, communicator(), device());
        const VocabParallelEmbedding embedding = make_embedding(p);
        const Tensors tensors = place(lookup.sample);

        // Apart: each gradient by itself, written into buffers of garbage.
        run(loss, tensors, way);
        const Answer apart = tensors.answer();
        EXPECT_EQ(differences(lookup.sample, whole(lookup.sample, apart, ranks()), loss.plan()),
                  "");
        const std::vector<double>& head = apart.grad_weight;
        backward(embedding, lookup, false);
        lookup.expect_gradient(0);
        const std::vector<double> table = lookup.grad_weight.read();

        // Together, twice, into one buffer.
        lookup.grad_weight.write(std::vector<double>(table.size(), 0));
        // The hidden one is asked for here too: of two products only the second is sure to take
        // logit gradients that were rounded.
        Gradients grad = tensors.gradients();
        grad.weight = lookup.grad_weight.tensor();
        grad.accumulate_weight = true;
        const Execution on{test_stream()};
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          if (way == Way::fused) {
            loss.forward_backward(tensors.inputs(), {}, {}, grad, on);
            backward(embedding, lookup);
          } else {
            Saved saved = loss.make_saved();
            loss.forward(tensors.inputs(), {}, &saved, on);
            loss.backward(tensors.inputs(), saved, {}, grad, on);
            backward(embedding, lookup);  // waits, before `saved` goes
          }
        }
        loss.wait(test_stream());
        const std::vector<double> got = lookup.grad_weight.read();
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], 2 * (head[i] + table[i]), 1e-5 * (1 + std::abs(got[i])));
        EXPECT_TRUE(lookup.grad_weight.intact());
      }
    }
  }
}

}  // namespace
}  // namespace shardloss::test
