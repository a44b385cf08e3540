// What only the MPI transport has: pieces for sizes past an int, deadlines, aborts, grids. Several
// tests leave operations behind that nobody will ever complete, as real failures do; every test has
// a communicator of its own.
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <thread>
#include <vector>

#include "elements.hpp"
#include "expect_error.hpp"
#include "faulty_transport.hpp"
#include "mpi_transport.hpp"
#include "shardloss/mpi.hpp"
#include "world.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto deadline = 800ms;
constexpr auto slack = 1500ms;

#define SHARDLOSS_NEEDS_PEERS() \
  if (ranks() == 1) GTEST_SKIP() << "a group of one waits for nobody"

bool last_rank() { return rank() == ranks() - 1; }

/// Runs `action`, which must throw Error(timeout) not before the deadline and soon after.
template <class Action>
void expect_timeout(const Action& action) {
  const Clock::time_point start = Clock::now();
  expect_error(ErrorCode::timeout, {"waited", "0.80 s"}, action);
  EXPECT_GE(Clock::now() - start, deadline);
  EXPECT_LE(Clock::now() - start, deadline + slack);
}

detail::MpiTransport small_pieces(std::int64_t piece) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  return {comm, 20s, piece};
}

TEST(MpiTransport, GathersInPiecesWhereASizePassesTheLimit) {
  detail::MpiTransport transport = small_pieces(16);
  std::vector<std::int64_t> bytes;
  std::vector<std::uint8_t> wanted;
  for (int r = 0; r < ranks(); ++r) {
    bytes.push_back(37 * r + 5);
    wanted.insert(wanted.end(), static_cast<std::size_t>(bytes.back()),
                  static_cast<std::uint8_t>(r + 1));
  }
  std::vector<std::uint8_t> data = wanted;
  for (std::uint8_t& byte : data) byte = byte == rank() + 1 ? byte : 0;
  transport.wait(transport.all_gather(data.data(), bytes, {}), {});
  EXPECT_EQ(data, wanted);
}

TEST(MpiTransport, SumsInPiecesWhereACountPassesTheLimit) {
  detail::MpiTransport transport = small_pieces(16);
  std::vector<float> data(101);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  transport.wait(transport.all_reduce(data.data(), 101, DType::float32, {}), {});
  for (std::size_t i = 0; i < data.size(); ++i)
    ASSERT_EQ(data[i], static_cast<float>(i) * static_cast<float>(ranks()));

  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks()), 33);
  counts[0] = 50;
  std::vector<double> parts(static_cast<std::size_t>(50 + 33 * (ranks() - 1)), 0.5);
  transport.wait(transport.reduce_scatter(parts.data(), counts, DType::float64, {}), {});
  const std::size_t first = rank() == 0 ? 0 : static_cast<std::size_t>(50 + 33 * (rank() - 1));
  const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank())]);
  for (std::size_t i = first; i < first + own; ++i) ASSERT_EQ(parts[i], 0.5 * ranks());
}

TEST(MpiTransport, AMissingPeerIsATimeoutAndTheStateIsSticky) {
  SHARDLOSS_NEEDS_PEERS();
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, deadline);
  Transport& transport = group_of_all.transport();
  static std::vector<float> data(1000, 1.0F);  // MPI may write into it until the end
  if (last_rank()) return;                     // it never takes part
  transport.note_step("grad_hidden", 17, 3);
  const Ticket ticket = transport.all_reduce(data.data(), 1000, DType::float32, {});
  expect_timeout([&] { transport.wait(ticket, {}); });
  EXPECT_TRUE(group_of_all.failed());

  const Clock::time_point start = Clock::now();
  const auto parts = {std::string_view("call 17"), std::string_view("step grad_hidden"),
                      std::string_view("chunk 3")};
  expect_error(ErrorCode::timeout, parts, [&] { transport.check(); });
  expect_error(ErrorCode::timeout, parts, [&] { transport.wait(ticket, {}); });
  expect_error(ErrorCode::timeout, parts,
               [&] { transport.all_reduce(data.data(), 10, DType::float32, {}); });
  int mine = 0;
  std::vector<int> all(static_cast<std::size_t>(ranks()));
  expect_error(ErrorCode::timeout, parts,
               [&] { transport.exchange_host(&mine, all.data(), sizeof mine); });
  transport.progress();
  EXPECT_LT(Clock::now() - start, 200ms) << "a failed communicator talks to nobody";
}

TEST(MpiTransport, AHostExchangeIsBoundedToo) {
  SHARDLOSS_NEEDS_PEERS();
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, deadline);
  if (last_rank()) return;
  int mine = rank();
  std::vector<int> all(static_cast<std::size_t>(ranks()), -1);
  expect_timeout([&] { group_of_all.transport().exchange_host(&mine, all.data(), sizeof mine); });
  EXPECT_EQ(all.front(), -1) << "MPI writes into its own buffers, not the caller's";
}

TEST(MpiTransport, MakingAGroupIsBoundedToo) {
  SHARDLOSS_NEEDS_PEERS();
  if (last_rank()) {
    std::this_thread::sleep_for(2 * deadline);
    // The others have left. The duplicate may still succeed, the first exchange cannot.
    expect_error(ErrorCode::timeout, {}, [] { from_mpi(MPI_COMM_WORLD, deadline); });
    return;
  }
  expect_timeout([] { from_mpi(MPI_COMM_WORLD, deadline); });
}

TEST(MpiTransport, AbortFromAnotherThreadEndsAWait) {
  SHARDLOSS_NEEDS_PEERS();
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, 20s);
  static std::vector<float> data(1000, 1.0F);
  if (last_rank()) return;
  const Ticket ticket = group_of_all.transport().all_reduce(data.data(), 1000, DType::float32, {});
  std::thread other([&] {
    std::this_thread::sleep_for(100ms);
    group_of_all.abort();
    group_of_all.abort();
  });
  const Clock::time_point start = Clock::now();
  expect_error(ErrorCode::peer, {"abort()"}, [&] { group_of_all.transport().wait(ticket, {}); });
  EXPECT_LT(Clock::now() - start, 2s);
  other.join();
  group_of_all.abort();
  expect_error(ErrorCode::peer, {"abort()"}, [&] { group_of_all.transport().check(); });
}

TEST(MpiTransport, AStoppedPeerIsATimeout) {
  SHARDLOSS_NEEDS_PEERS();
  static std::vector<float> data(100000, 1.0F);
  Fault fault;
  if (last_rank()) fault = {.misdeed = Misdeed::stop, .collective = 0, .duration = 2 * deadline};
  FaultyTransport transport(from_mpi(MPI_COMM_WORLD, deadline), fault);
  const Ticket ticket = transport.all_reduce(data.data(), 100000, DType::float32, {});
  if (!last_rank()) return expect_timeout([&] { transport.wait(ticket, {}); });
  // The peers may have sent their part before they gave up.
  try {
    transport.wait(ticket, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  }
}

TEST(MpiTransport, UnequalSizesNeverHang) {
  SHARDLOSS_NEEDS_PEERS();
  for (const std::int64_t count : {4, 4096, 300000}) {
    static std::vector<std::vector<float>> kept;
    std::vector<float>& data = kept.emplace_back(static_cast<std::size_t>(count), 1.0F);
    Fault fault;
    if (last_rank()) fault = {.misdeed = Misdeed::alter, .collective = 0};
    FaultyTransport transport(from_mpi(MPI_COMM_WORLD, deadline), fault);
    const Clock::time_point start = Clock::now();
    // MPI may call it a success: that is why sizes are agreed on before anything is sent.
    try {
      transport.wait(transport.all_reduce(data.data(), count, DType::float32, {}), {});
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::peer)
          << error.what();
    }
    EXPECT_LE(Clock::now() - start, deadline + slack);
  }
}

TEST(MpiTransport, ADeadlineThatIsNoneIsRefusedOnEveryRank) {
  for (const auto wrong :
       {0ms, -5ms, std::chrono::duration_cast<std::chrono::milliseconds>(longest_deadline) + 1ms}) {
    expect_error(ErrorCode::invalid_argument, {"deadline", std::to_string(wrong.count())},
                 [&] { from_mpi(MPI_COMM_WORLD, last_rank() ? wrong : 5000ms); });
  }
}

TEST(MpiTransport, RefusesWhatIsNoIntracommunicator) {
  expect_error(ErrorCode::invalid_argument, {"intracommunicator"}, [] { from_mpi(MPI_COMM_NULL); });
}

/// The world ranks of the members, as the group itself tells.
std::vector<int> members(const Communicator& part) {
  const int mine = rank();
  std::vector<int> all(static_cast<std::size_t>(part.size()));
  part.transport().exchange_host(&mine, all.data(), sizeof mine);
  return all;
}

TEST(ProcessGrid, NeighboursOrStridesBecomeTensorParallelGroups) {
  const int size = ranks();
  for (int width = 1; width <= size; ++width) {
    if (size % width != 0) continue;
    const int copies = size / width;
    for (const GridOrder order : {GridOrder::contiguous, GridOrder::strided}) {
      const bool near = order == GridOrder::contiguous;
      const ProcessGrid grid = make_grid(MPI_COMM_WORLD, width, order, 5s);
      const int group = near ? rank() / width : rank() % copies;
      const int member = near ? rank() % width : rank() / copies;
      std::vector<int> tensor(static_cast<std::size_t>(width));
      std::vector<int> data(static_cast<std::size_t>(copies));
      for (int i = 0; i < width; ++i)
        tensor[static_cast<std::size_t>(i)] = near ? group * width + i : i * copies + group;
      for (int i = 0; i < copies; ++i)
        data[static_cast<std::size_t>(i)] = near ? i * width + member : member * copies + i;
      EXPECT_EQ(members(grid.tensor_parallel), tensor);
      EXPECT_EQ(members(grid.data_parallel), data);
      EXPECT_EQ(grid.tensor_parallel.rank(), member);
      EXPECT_EQ(grid.data_parallel.rank(), group);
    }
  }
}

TEST(ProcessGrid, WhatDoesNotDivideIsRefusedOnEveryRank) {
  for (const int width : {0, -1, ranks() + 1}) {
    expect_error(ErrorCode::invalid_argument,
                 {"tensor_parallel", std::to_string(ranks()), std::to_string(width)},
                 [&] { make_grid(MPI_COMM_WORLD, width, GridOrder::contiguous, 5s); });
  }
}

TEST(ProcessGrid, DifferentWishesAreAMismatchOnEveryRank) {
  SHARDLOSS_NEEDS_PEERS();
  expect_error(ErrorCode::mismatch, {"tensor_parallel", "rank " + std::to_string(ranks() - 1)},
               [] { make_grid(MPI_COMM_WORLD, last_rank() ? ranks() : 1); });
  expect_error(ErrorCode::mismatch, {"order"}, [] {
    make_grid(MPI_COMM_WORLD, 1, last_rank() ? GridOrder::strided : GridOrder::contiguous);
  });
}

}  // namespace
}  // namespace shardloss::test
