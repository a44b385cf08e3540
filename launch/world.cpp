#include "world.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "shardloss/error.hpp"

#ifdef SHARDLOSS_LAUNCH_MPI
#include "shardloss/mpi.hpp"
#ifdef SHARDLOSS_LAUNCH_NCCL
#include "shardloss/nccl_mpi.hpp"
#endif
#endif

namespace shardloss::launch {

#ifdef SHARDLOSS_LAUNCH_MPI
namespace {

/// Whether mpirun, srun or another launcher that MPI can join has started this process.
bool launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

}  // namespace

World::World(int* argc, char*** argv) : mpi_(launched()) {
  if (!mpi_) return;
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm neighbours = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &neighbours);
  MPI_Comm_rank(neighbours, &local_rank_);
  MPI_Comm_free(&neighbours);
}

World::~World() {
  host_.reset();
  if (mpi_) MPI_Finalize();
}

const Communicator& World::host(std::chrono::milliseconds deadline) {
  if (!host_) host_.emplace(mpi_ ? from_mpi(MPI_COMM_WORLD, deadline) : self());
  return *host_;
}

Communicator World::group(Device device, std::chrono::milliseconds deadline) {
  if (device.kind == DeviceKind::cpu) return mpi_ ? from_mpi(MPI_COMM_WORLD, deadline) : self();
  if (size_ == 1) return self();
#ifdef SHARDLOSS_LAUNCH_NCCL
  return nccl_from_mpi(MPI_COMM_WORLD, device, deadline);
#else
  throw Error(ErrorCode::invalid_argument,
              "--device cuda: found several ranks and no NCCL in this build, wanted one rank");
#endif
}

void World::abort(int status) const {
  if (mpi_ && size_ > 1) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

#else

World::World(int*, char***) {}
World::~World() = default;

const Communicator& World::host(std::chrono::milliseconds) {
  if (!host_) host_.emplace(self());
  return *host_;
}

Communicator World::group(Device, std::chrono::milliseconds) { return self(); }

void World::abort(int status) const { std::_Exit(status); }

#endif

std::string fault_text(const std::exception& error) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                      dynamic_cast<const std::length_error*>(&error) != nullptr;
  if (memory)
    return "out_of_memory: a rank found no more memory, wanted a smaller problem or more ranks";
  return *error.what() == '\0' ? "unknown fault" : error.what();
}

void agree(const Communicator& host, const std::string& fault) {
  struct Verdict {
    std::uint32_t faulty;
    std::array<char, 508> text;
  };
  Verdict mine{fault.empty() ? 0u : 1u, {}};
  std::memcpy(mine.text.data(), fault.data(), std::min(fault.size(), mine.text.size() - 1));
  std::vector<Verdict> all(static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(&mine, all.data(), sizeof mine);
  for (const Verdict& verdict : all)
    if (verdict.faulty != 0) throw Refusal{verdict.text.data()};
}

}  // namespace shardloss::launch
