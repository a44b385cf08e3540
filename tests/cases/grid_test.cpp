// Case 12: groups inside a larger job never mix. On four CPU ranks: two groups of two.
#include <chrono>

#include "rank_test.hpp"
#include "shardloss/mpi.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;

// A group that waits for another one says so soon.
constexpr std::chrono::milliseconds deadline = 10s;

class Grid : public testing::Test {
 protected:
  void SetUp() override {
    if (device().kind == DeviceKind::cuda) GTEST_SKIP() << "a grid over MPI is for CPU ranks";
    ASSERT_EQ(ranks(), 4);
  }
};

/// Options that need the whole vocabulary, all rows, or another rank's column; shards of different
/// widths, the last one with padding.
Problem replica_problem(Layout layout, std::int64_t rows) {
  Problem problem = plain_problem(rows, 5, 21);
  problem.vocab_padded = 24;
  problem.shard_widths = {15, 9};
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 4};
  problem.bias = true;
  problem.class_weights = true;
  problem.label_smoothing = 0.1;
  problem.z_loss = 0.01;
  problem.entropy = true;
  return problem;
}

/// A batch of `rows`: another seed, other data and other class and token weights. row_sharded:
/// `first` of the rows are the first rank's.
Sample batch(const Problem& problem, std::int64_t rows, std::uint64_t seed, std::int64_t first) {
  Sample sample = fill_rows(problem, rows, 2, seed);
  if (problem.layout == Layout::row_sharded) sample.split = {first, rows - first};
  for (std::int64_t v = 0; v < problem.vocab; ++v)
    sample.data.class_weights.push_back(0.5 + static_cast<double>((v + sample.data.rows) % 4));
  for (std::int64_t i = 0; i < rows; ++i)
    sample.data.token_weights.push_back(static_cast<double>(i % 5) / 2);
  return sample;
}

TEST_F(Grid, Case12_EachTensorParallelGroupComputesWithItsOwnData) {
  for (const GridOrder order : {GridOrder::strided, GridOrder::contiguous}) {
    const ProcessGrid grid = make_grid(MPI_COMM_WORLD, 2, order, deadline);
    const int replica = grid.data_parallel.rank();
    ASSERT_EQ(grid.tensor_parallel.size(), 2);
    ASSERT_EQ(grid.data_parallel.size(), 2);
    EXPECT_EQ(grid.tensor_parallel.rank(), order == GridOrder::strided ? rank() / 2 : rank() % 2);
    EXPECT_EQ(replica, order == GridOrder::strided ? rank() % 2 : rank() / 2);

    // The replicas differ in the number of their rows too, and in who has them.
    const std::int64_t rows = replica == 0 ? 11 : 7;
    for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
      for (const std::int64_t first : {std::int64_t{3}, std::int64_t{0}, rows}) {
        const Sample sample = batch(replica_problem(layout, rows), rows,
                                    static_cast<std::uint64_t>(20 + replica), first);
        for (const Way way : {Way::fused, Way::two_step})
          EXPECT_EQ(check(sample, grid.tensor_parallel, way), "")
              << (way == Way::fused ? "fused " : "two_step ") << describe_options(sample);
      }
    }
  }
}

/// Sums over the replicas what belongs to the whole batch, and puts their rows one after the other.
Answer join_replicas(const Tensors& tensors, const Sample& part, const ProcessGrid& grid) {
  const Communicator& across = grid.data_parallel;
  for (const DeviceArray* scalar :
       {&tensors.loss, &tensors.cross_entropy, &tensors.z_loss, &tensors.counted_rows})
    sum_over(across, scalar->tensor());
  for (const DeviceArray* matrix : {&tensors.grad_weight, &tensors.grad_bias})
    sum_over(across, Tensor(matrix->data(), DType::float32, matrix->elements(), 1));

  Answer answer = whole(part, tensors.answer(), grid.tensor_parallel);
  for (std::vector<double>* values : {&answer.row_loss, &answer.lse, &answer.target_logprob,
                                      &answer.entropy, &answer.grad_hidden})
    *values = gather(across, *values);
  for (std::vector<std::int64_t>* values : {&answer.argmax, &answer.correct}) {
    const std::vector<double> all =
        gather(across, std::vector<double>(values->begin(), values->end()));
    values->assign(all.begin(), all.end());
  }
  return answer;
}

/// As a trainer does it: the weights that count in all replicas' rows, summed where they are; then
/// the losses and weight gradients of the replicas add up to those of one batch.
void expect_joined_batch(const ProcessGrid& grid, Layout layout, Way way, bool uneven) {
  constexpr std::int64_t rows = 17, of_first = 10;
  const int replica = grid.data_parallel.rank();
  const Sample joined = batch(replica_problem(Layout::replicated, rows), rows, 30, 0);
  Sample part =
      replica == 0 ? rows_of(joined, 0, of_first) : rows_of(joined, of_first, rows - of_first);
  part.problem.layout = layout;
  part.problem.normalizer = true;
  part.data.normalizer = 0;
  const std::int64_t own = part.data.rows;
  if (layout == Layout::row_sharded)
    part.split = uneven ? std::vector<std::int64_t>{own, 0} : std::vector<std::int64_t>{2, own - 2};

  const Loss loss(part.problem, grid.tensor_parallel);
  const Tensors tensors(part, grid.tensor_parallel.rank(), 2, {});
  const Tensor total = tensors.normalizer.tensor();
  loss.add_denominator(tensors.inputs(), total);
  if (layout == Layout::row_sharded) sum_over(grid.tensor_parallel, total);
  sum_over(grid.data_parallel, total);
  run(loss, tensors, way);
  EXPECT_EQ(differences(joined, join_replicas(tensors, part, grid), loss.plan()), "")
      << (way == Way::fused ? "fused " : "two_step ") << describe_options(part);
}

TEST_F(Grid, Case12_LossesUnderTheNormalizerOfAllReplicasAddUpToTheJoinedBatch) {
  for (const GridOrder order : {GridOrder::strided, GridOrder::contiguous}) {
    const ProcessGrid grid = make_grid(MPI_COMM_WORLD, 2, order, deadline);
    for (const Layout layout : {Layout::replicated, Layout::row_sharded})
      for (const Way way : {Way::fused, Way::two_step})
        for (const bool uneven : {false, true}) expect_joined_batch(grid, layout, way, uneven);
  }
}

/// `calls` calls of one Loss, of different sizes, by turns in one pass and in two.
void make_calls(const Loss& loss, const Communicator& group, int calls, std::uint64_t seed) {
  for (int i = 0; i < calls; ++i) {
    const Sample sample = batch(loss.problem(), 3 + 4 * i, seed + static_cast<std::uint64_t>(i), 2);
    const Tensors tensors(sample, group.rank(), group.size(), {});
    run(loss, tensors, i % 2 == 0 ? Way::fused : Way::two_step);
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), group), loss.plan()), "")
        << "call " << i << " " << describe_options(sample);
  }
}

// Case 12 (Megatron-LM#5128): a collective over a larger group would wait for the other replica,
// which makes fewer calls and at other times.
TEST_F(Grid, Case12_GroupsMakeTheirCallsWithoutEachOther) {
  for (const GridOrder order : {GridOrder::strided, GridOrder::contiguous}) {
    for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
      const ProcessGrid grid = make_grid(MPI_COMM_WORLD, 2, order, deadline);
      const int replica = grid.data_parallel.rank();
      const int calls = replica == 0 ? 3 : 1;
      const auto seed = static_cast<std::uint64_t>(40 + 10 * replica);
      const Loss loss(replica_problem(layout, 11), grid.tensor_parallel);
      // Errors are kept from leaving: the other replica waits in a barrier.
      EXPECT_NO_THROW(make_calls(loss, grid.tensor_parallel, calls, seed)) << "both at a time";
      for (const int turn : {0, 1}) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (replica != turn) continue;
        EXPECT_NO_THROW(make_calls(loss, grid.tensor_parallel, calls, seed)) << "turn " << turn;
      }
      ASSERT_EQ(count(grid.tensor_parallel.failed()), 0);
    }
  }
}

TEST_F(Grid, ASizeThatDoesNotDivideIsRefusedOnEveryRank) {
  expect_error(ErrorCode::invalid_argument, {"4", "3"},
               [] { make_grid(MPI_COMM_WORLD, 3, GridOrder::contiguous, deadline); });
}

}  // namespace
}  // namespace shardloss::test
