// Case 12: groups inside a larger job never mix.
#include "rank_test.hpp"
#include "shardloss/mpi.hpp"

namespace shardloss::test {
namespace {

TEST(Grid, Case12_EachTensorParallelGroupGetsTheLossOfItsOwnData) {
  for (GridOrder order : {GridOrder::strided, GridOrder::contiguous}) {
    const ProcessGrid grid = make_grid(MPI_COMM_WORLD, 2, order, std::chrono::seconds(20));
    const int rank_in_group = grid.tensor_parallel.rank();
    const int replica = grid.data_parallel.rank();
    ASSERT_EQ(grid.tensor_parallel.size(), 2);
    ASSERT_EQ(grid.data_parallel.size(), 2);
    EXPECT_EQ(rank_in_group, order == GridOrder::strided ? rank() / 2 : rank() % 2);
    EXPECT_EQ(replica, order == GridOrder::strided ? rank() % 2 : rank() / 2);

    const Sample sample = fill(plain_problem(9, 5, 20), 2, static_cast<std::uint64_t>(replica));
    const Loss loss(sample.problem, grid.tensor_parallel);
    const Tensors tensors(sample, rank_in_group, 2, {});
    run(loss, tensors, Way::fused);
    const ReferenceResult exact = reference(sample.data);
    EXPECT_NEAR(tensors.answer().loss[0], exact.loss[0], 1e-5 * exact.loss[0]);
  }
}

TEST(Grid, ASizeThatDoesNotDivideIsRefusedOnEveryRank) {
  expect_error(ErrorCode::invalid_argument, {"4", "3"}, [] {
    make_grid(MPI_COMM_WORLD, 3, GridOrder::contiguous, std::chrono::seconds(20));
  });
}

}  // namespace
}  // namespace shardloss::test
