// Collectives of the group under test (MPI on CPU ranks, NCCL on GPUs) against sums made here.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "device_tensors.hpp"
#include "elements.hpp"
#include "expect_error.hpp"
#include "world.hpp"
#ifdef SHARDLOSS_TEST_CUDA
#include "shardloss/nccl.hpp"
#ifdef SHARDLOSS_TEST_MPI
#include "shardloss/mpi.hpp"
#endif
#endif

namespace shardloss::test {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Segment sizes that real calls meet: equal, uneven, empty at either end, all in one place.
std::vector<Counts> segmentations(std::int64_t most) {
  const auto size = static_cast<std::size_t>(ranks());
  std::vector<Counts> all(5, Counts(size, 0));
  for (std::size_t r = 0; r < size; ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    all[0][r] = most;
    all[1][r] = (rank * 7 + 3) % 5 * most / 4;
    all[2][r] = rank == 0 ? 0 : most;
  }
  all[3].back() = most;
  return all;  // all[4]: nothing at all
}

/// What `rank` contributes: the same on every rank that asks. Magnitudes differ by powers of two,
/// so that the order of the summands shows in the bits.
std::vector<double> contribution(int rank, std::int64_t count, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    const double sample = (2 * unit - 1) * std::ldexp(1.0, static_cast<int>(random() % 7) - 3);
    value = dtype == DType::int64 ? std::round(sample * 1e6) : rounded(sample, dtype);
  }
  return values;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::float64: return 0x1p-53;
    case DType::float32: return 0x1p-24;
    case DType::bfloat16: return 0x1p-8;
    case DType::float16: return 0x1p-11;
    default: return 0;
  }
}

/// The worst |got - sum over ranks| as a share of P roundings of the summands' sizes. The sum's own
/// roundings would count as much as those of a float64 that was added up in another order.
double worst_share(const std::vector<double>& got, std::int64_t first, std::int64_t count,
                   DType dtype, std::uint64_t seed, std::int64_t whole) {
  std::vector<long double> sum(static_cast<std::size_t>(count), 0.0L);
  std::vector<double> size(static_cast<std::size_t>(count), 0.0);
  for (int r = 0; r < ranks(); ++r) {
    const std::vector<double> values = contribution(r, whole, dtype, seed);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double value = values[i + static_cast<std::size_t>(first)];
      sum[i] += value;
      size[i] += std::abs(value);
    }
  }
  double worst = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const auto error =
        static_cast<double>(std::abs(got[i + static_cast<std::size_t>(first)] - sum[i]));
    const double allowed = ranks() * unit_roundoff(dtype) * size[i];
    worst = std::max(worst, error == 0 ? 0 : error / allowed);
    if (!(error <= allowed)) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

DeviceArray array(DType dtype, const std::vector<double>& values) {
  DeviceArray result(dtype, static_cast<std::int64_t>(values.size()), 1, device());
  result.write(values);
  return result;
}

/// A few bytes that differ when `bytes` do.
bool equal_on_all_ranks(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3ULL;
  return same_everywhere(std::as_bytes(std::span(&hash, 1)));
}

constexpr DType summed[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16,
                            DType::int64};

TEST(Transport, KnowsItsRankAndSize) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  EXPECT_EQ(group_of_all.rank(), rank());
  EXPECT_EQ(group_of_all.size(), ranks());
  EXPECT_TRUE(group_of_all.transport().serves(device().kind));
  EXPECT_FALSE(group_of_all.failed());
}

TEST(Transport, ExchangeHostBringsEveryRanksBytesInRankOrder) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  for (const std::size_t bytes : {1u, 8u, 4096u, 10001u}) {
    std::vector<std::uint8_t> mine(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      mine[i] = static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(rank()) * 17);
    std::vector<std::uint8_t> all(bytes * static_cast<std::size_t>(ranks()), 0xee);
    group_of_all.transport().exchange_host(mine.data(), all.data(), bytes);
    for (std::size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all[i], static_cast<std::uint8_t>(i % bytes * 31 + i / bytes * 17)) << i;
  }
}

TEST(Transport, AllGatherFillsEverySegment) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  for (const std::int64_t most : {1, 100, 40001}) {
    for (const Counts& counts : segmentations(most)) {
      std::vector<double> mine(static_cast<std::size_t>(total(counts)), -1);
      std::vector<double> wanted;
      for (int r = 0; r < ranks(); ++r) {
        const std::int64_t count = counts[static_cast<std::size_t>(r)];
        const auto values = contribution(r, count, DType::float32, 5);
        if (r == rank())
          std::copy(values.begin(), values.end(),
                    mine.begin() + static_cast<std::ptrdiff_t>(wanted.size()));
        wanted.insert(wanted.end(), values.begin(), values.end());
      }
      const DeviceArray data = array(DType::float32, mine);
      Counts bytes = counts;
      for (std::int64_t& count : bytes) count *= 4;
      const Ticket ticket = group_of_all.transport().all_gather(data.data(), bytes, test_stream());
      group_of_all.transport().wait(ticket, test_stream());
      EXPECT_EQ(data.read(), wanted);
      EXPECT_TRUE(data.intact());
    }
  }
}

TEST(Transport, AllReduceIsTheSumWithTheSameBitsOnAllRanks) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  std::uint64_t seed = 1;
  for (const DType dtype : summed) {
    for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000, 1023, 4097, 16384, 65537, 300007}) {
      ++seed;
      const DeviceArray data = array(dtype, contribution(rank(), count, dtype, seed));
      const Ticket ticket =
          group_of_all.transport().all_reduce(data.data(), count, dtype, test_stream());
      group_of_all.transport().wait(ticket, test_stream());
      EXPECT_LE(worst_share(data.read(), 0, count, dtype, seed, count), 1)
          << count << " elements of " << name(dtype);
      EXPECT_TRUE(equal_on_all_ranks(data.bytes())) << count << " elements of " << name(dtype);
      EXPECT_TRUE(data.intact());
    }
  }
}

TEST(Transport, ReduceScatterLeavesTheSumInTheOwnSegment) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  std::uint64_t seed = 100;
  for (const DType dtype : summed) {
    for (const std::int64_t most : {1, 3, 1000, 40003}) {
      for (const Counts& counts : segmentations(most)) {
        ++seed;
        const std::int64_t whole = total(counts);
        const DeviceArray data = array(dtype, contribution(rank(), whole, dtype, seed));
        const Ticket ticket =
            group_of_all.transport().reduce_scatter(data.data(), counts, dtype, test_stream());
        group_of_all.transport().wait(ticket, test_stream());
        const auto own = counts.begin() + rank();
        const std::int64_t first = std::accumulate(counts.begin(), own, std::int64_t{0});
        EXPECT_LE(worst_share(data.read(), first, *own, dtype, seed, whole), 1)
            << *own << " of " << whole << " elements of " << name(dtype);
        EXPECT_TRUE(data.intact());
      }
    }
  }
}

TEST(Transport, TheSameSumHasTheSameBitsEveryTime) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  const std::int64_t count = 50021;
  std::vector<std::byte> first;
  for (int run = 0; run < 8; ++run) {
    const DeviceArray data = array(DType::float32, contribution(rank(), count, DType::float32, 7));
    group_of_all.transport().wait(
        group_of_all.transport().all_reduce(data.data(), count, DType::float32, test_stream()),
        test_stream());
    if (run == 0) first = data.bytes();
    EXPECT_EQ(data.bytes(), first) << "run " << run;
  }
}

TEST(Transport, NaNAndInfinityTravelThroughSums) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const bool last = rank() == ranks() - 1;
    const DeviceArray data = array(dtype, {last ? nan : 1.0, last ? -infinity : 1.0, 1.0});
    group_of_all.transport().wait(
        group_of_all.transport().all_reduce(data.data(), 3, dtype, test_stream()), test_stream());
    const std::vector<double> sum = data.read();
    EXPECT_TRUE(std::isnan(sum[0])) << name(dtype);
    EXPECT_EQ(sum[1], -infinity) << name(dtype);
    EXPECT_EQ(sum[2], ranks()) << name(dtype);
  }
}

TEST(Transport, CollectivesInFlightTogetherMayBeAwaitedInAnyOrder) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  Transport& transport = group_of_all.transport();
  std::vector<DeviceArray> data;
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 6; ++i) {
    data.push_back(array(DType::float32, contribution(rank(), 5000 + i, DType::float32, 40)));
    tickets.push_back(
        transport.all_reduce(data.back().data(), 5000 + i, DType::float32, test_stream()));
    transport.progress();
  }
  for (const std::size_t i : {5u, 0u, 3u, 1u, 4u, 2u}) {
    transport.wait(tickets[i], test_stream());
    const auto count = static_cast<std::int64_t>(5000 + i);
    EXPECT_LE(worst_share(data[i].read(), 0, count, DType::float32, 40, count), 1) << i;
  }
}

TEST(Transport, CountsWhatThisRankContributes) {
  SHARDLOSS_NEEDS_DEVICE();
  const Communicator group_of_all = group();
  Transport& transport = group_of_all.transport();
  const DeviceArray data = array(DType::float32, std::vector<double>(100, 0.0));
  const Traffic before = transport.traffic();
  Counts bytes(static_cast<std::size_t>(ranks()), 8);
  transport.wait(transport.all_gather(data.data(), bytes, test_stream()), test_stream());
  transport.wait(transport.all_reduce(data.data(), 100, DType::float32, test_stream()),
                 test_stream());
  const Traffic after = transport.traffic();
  EXPECT_EQ(after.calls - before.calls, ranks() > 1 ? 2 : 0);
  EXPECT_EQ(after.bytes - before.bytes, ranks() > 1 ? 8 + 400 : 0);
}

TEST(Transport, RefusesSumsOfOtherTypes) {
  SHARDLOSS_NEEDS_DEVICE();
  if (ranks() == 1) GTEST_SKIP() << "a group of one sums nothing";
  const Communicator group_of_all = group();
  expect_error(ErrorCode::invalid_argument, {"int32"}, [&] {
    group_of_all.transport().all_reduce(nullptr, 1, DType::int32, test_stream());
  });
  EXPECT_FALSE(group_of_all.failed());
}

#ifdef SHARDLOSS_TEST_CUDA
// Before NCCL or a GPU is asked for anything.
TEST(Transport, SplitNcclRefusesOtherGroups) {
  expect_error(ErrorCode::invalid_argument, {"over NCCL", "self"},
               [] { split_nccl(self(), 0, 0); });
#ifdef SHARDLOSS_TEST_MPI
  const Communicator over_mpi = from_mpi(MPI_COMM_WORLD, std::chrono::seconds(20));
  expect_error(ErrorCode::invalid_argument, {"over NCCL", "mpi"},
               [&] { split_nccl(over_mpi, 0, rank()); });
  EXPECT_FALSE(over_mpi.failed());
#endif
}
#endif

}  // namespace
}  // namespace shardloss::test
