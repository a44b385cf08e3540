#include "world.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device_tensors.hpp"

#ifdef SHARDLOSS_TEST_MPI
#include "shardloss/mpi.hpp"
#ifdef SHARDLOSS_TEST_CUDA
#include "shardloss/nccl_mpi.hpp"
#endif
#endif

namespace shardloss::test {

#ifdef SHARDLOSS_TEST_MPI

int rank() {
  int value = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &value);
  return value;
}

int ranks() {
  int value = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &value);
  return value;
}

Device device() {
  // GPU tests run on one host: ranks number its GPUs, or share one.
  return test_device(rank());
}

Communicator group(std::chrono::milliseconds deadline) {
#ifdef SHARDLOSS_TEST_CUDA
  if (device().kind == DeviceKind::cuda) {
    // Under a tool that looks at every access NCCL takes half a minute to begin.
    if (const char* seconds = std::getenv("SHARDLOSS_TEST_DEADLINE_SECONDS"))
      deadline = std::max(deadline, std::chrono::milliseconds(1000 * std::atoll(seconds)));
    return ranks() == 1 ? self() : nccl_from_mpi(MPI_COMM_WORLD, device(), deadline);
  }
#endif
  return from_mpi(MPI_COMM_WORLD, deadline);
}

std::vector<double> gather(std::span<const double> mine) {
  const int size = static_cast<int>(mine.size());
  std::vector<int> sizes(static_cast<std::size_t>(ranks()));
  MPI_Allgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::vector<int> starts(sizes.size(), 0);
  for (std::size_t r = 1; r < starts.size(); ++r) starts[r] = starts[r - 1] + sizes[r - 1];
  std::vector<double> all(static_cast<std::size_t>(starts.back() + sizes.back()));
  MPI_Allgatherv(mine.data(), size, MPI_DOUBLE, all.data(), sizes.data(), starts.data(), MPI_DOUBLE,
                 MPI_COMM_WORLD);
  return all;
}

int count(bool value) {
  const int mine = value ? 1 : 0;
  int sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

#else

int rank() { return 0; }
int ranks() { return 1; }
Device device() { return test_device(0); }
Communicator group(std::chrono::milliseconds) { return self(); }
std::vector<double> gather(std::span<const double> mine) { return {mine.begin(), mine.end()}; }
int count(bool value) { return value ? 1 : 0; }

#endif

std::vector<double> gather(const Communicator& group, std::span<const double> mine) {
  const auto size = static_cast<std::size_t>(group.size());
  const std::size_t length = mine.size();
  std::vector<std::size_t> lengths(size);
  group.transport().exchange_host(&length, lengths.data(), sizeof length);
  // An exchange takes as many bytes of every rank.
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return {};
  std::vector<double> padded(mine.begin(), mine.end());
  padded.resize(longest);
  std::vector<double> parts(size * longest);
  group.transport().exchange_host(padded.data(), parts.data(), longest * sizeof(double));
  std::vector<double> all;
  for (std::size_t r = 0; r < size; ++r) {
    const auto part = parts.begin() + static_cast<std::ptrdiff_t>(r * longest);
    all.insert(all.end(), part, part + static_cast<std::ptrdiff_t>(lengths[r]));
  }
  return all;
}

namespace {

std::vector<double> as_numbers(std::span<const std::byte> bytes) {
  std::vector<double> values;
  for (const std::byte byte : bytes) values.push_back(std::to_integer<int>(byte));
  return values;
}

// Whether `all` is `mine` once for each of `ranks`.
bool repeats(const std::vector<double>& all, const std::vector<double>& mine, int ranks) {
  bool same = all.size() == mine.size() * static_cast<std::size_t>(ranks);
  for (std::size_t i = 0; same && i < all.size(); ++i) same = all[i] == mine[i % mine.size()];
  return same;
}

}  // namespace

bool same_everywhere(std::span<const std::byte> bytes) {
  const std::vector<double> mine = as_numbers(bytes);
  return count(!repeats(gather(mine), mine, ranks())) == 0;
}

// All ranks look at the same numbers: where two differ, every rank finds one that is not its own.
bool same_everywhere(const Communicator& group, std::span<const std::byte> bytes) {
  const std::vector<double> mine = as_numbers(bytes);
  return repeats(gather(group, mine), mine, group.size());
}

}  // namespace shardloss::test
