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
  // GPU tests run on one host: ranks number its GPUs.
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

bool same_everywhere(std::span<const std::byte> bytes) {
  std::vector<double> values;
  for (const std::byte byte : bytes) values.push_back(std::to_integer<int>(byte));
  const std::vector<double> all = gather(values);
  bool same = all.size() == values.size() * static_cast<std::size_t>(ranks());
  for (std::size_t i = 0; same && i < all.size(); ++i) same = all[i] == values[i % values.size()];
  return count(!same) == 0;
}

}  // namespace shardloss::test
