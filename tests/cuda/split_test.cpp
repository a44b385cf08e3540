// Groups split from a group over NCCL: whom they hold, in which order, and that they compute.
#include <chrono>
#include <string>

#include "gpu_test.hpp"
#ifdef SHARDLOSS_TEST_MPI
#include "shardloss/nccl_mpi.hpp"
#else
#include "shardloss/nccl.hpp"
#endif

namespace shardloss::test {
namespace {

using Split = GpuTest;

/// All ranks, over NCCL also where there is but one.
Communicator nccl_group() {
#ifdef SHARDLOSS_TEST_MPI
  return nccl_from_mpi(MPI_COMM_WORLD, device(), std::chrono::seconds(20));
#else
  return from_nccl_id(make_nccl_id(), 1, 0, device(), std::chrono::seconds(20));
#endif
}

/// A Loss of each layout over `group`, both ways, on data of its own.
void expect_right(const Communicator& group, std::uint64_t seed) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = plain_problem(13, 8, 53);
    problem.layout = layout;
    problem.chunking = {Chunking::Rule::rows, 5};
    problem.bias = true;
    problem.label_smoothing = 0.1;
    // Uneven, so that ranks in a wrong order would hold wrong rows and columns.
    if (group.size() == 2) problem.shard_widths = {20, 33};
    Sample sample = fill(problem, group.size(), seed);
    if (layout == Layout::row_sharded && group.size() == 2) sample.split = {4, 9};
    for (const Way way : {Way::fused, Way::two_step})
      EXPECT_EQ(check(sample, group, way), "")
          << (way == Way::fused ? "fused " : "two_step ") << describe_options(sample);
  }
}

TEST_F(Split, AColorOfItsOwnMakesAGroupOfOne) {
  const Communicator parent = nccl_group();
  const Communicator alone = split_nccl(parent, rank(), 0);
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.deadline(), parent.deadline());
  EXPECT_EQ(alone.transport().kind(), parent.transport().kind());
  // Different data on each rank, which sums over both would show.
  expect_right(alone, static_cast<std::uint64_t>(70 + rank()));
  expect_right(parent, 72);
}

TEST_F(Split, TheKeyOrdersTheRanks) {
  const Communicator parent = nccl_group();
  const Communicator same = split_nccl(parent, 0, rank());
  EXPECT_EQ(same.rank(), rank());
  EXPECT_EQ(same.size(), ranks());
  const Communicator reversed = split_nccl(parent, 3, -rank());
  EXPECT_EQ(reversed.rank(), ranks() - 1 - rank());
  EXPECT_EQ(reversed.size(), ranks());
  expect_right(reversed, 73);
  expect_right(same, 74);
  expect_right(parent, 75);
}

TEST_F(Split, AGroupOutlivesTheOneItWasSplitFrom) {
  const Communicator reversed = split_nccl(nccl_group(), 0, -rank());
  expect_right(reversed, 76);
}

TEST_F(Split, AColorBelowZeroIsRefusedOnEveryRank) {
  const Communicator parent = nccl_group();
  const Communicator before = split_nccl(parent, 0, -rank());
  for (int refused = 0; refused < ranks(); ++refused) {
    const int color = rank() == refused ? -7 : 0;
    expect_error(ErrorCode::invalid_argument, {"color", "rank " + std::to_string(refused), "-7"},
                 [&] { split_nccl(parent, color, 0); });
  }
  EXPECT_FALSE(parent.failed());
  expect_right(parent, 77);
  expect_right(before, 78);
  expect_right(split_nccl(parent, 0, rank()), 79);
}

}  // namespace
}  // namespace shardloss::test
