/// \file
/// NCCL groups whose ids travel over MPI.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "shardloss/mpi.hpp"
#include "shardloss/nccl.hpp"

namespace shardloss {

/// A NCCL group of the processes of `comm`, one GPU each. Collective over `comm`, bounded by the
/// deadline.
inline Communicator nccl_from_mpi(MPI_Comm comm, Device device,
                                  std::chrono::milliseconds deadline = default_deadline) {
  const Communicator host = from_mpi(comm, deadline);
  NcclId id{};
  if (host.rank() == 0) id = make_nccl_id();
  std::vector<NcclId> all(static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(&id, all.data(), sizeof id);
  return from_nccl_id(all.front(), host.size(), host.rank(), device, deadline);
}

}  // namespace shardloss
