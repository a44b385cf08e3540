// Makes groups over MPI: duplicates, and grids of tensor- and data-parallel groups.
#include "shardloss/mpi.hpp"

#include <memory>
#include <vector>

#include "mpi_transport.hpp"
#include "poll.hpp"

namespace shardloss {
namespace {

using detail::MpiTransport;
using std::chrono::milliseconds;

// A rank's part of a construction. Nobody throws for its own arguments before all have arrived.
struct Wanted {
  std::int64_t deadline = 0;
  std::int64_t tensor_parallel = 0;
  std::int64_t order = 0;
};

void check_usable(MPI_Comm comm) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) {
    throw Error(ErrorCode::invalid_argument, "MPI is not initialized, or is finalized already");
  }
  int inter = 0;
  if (comm != MPI_COMM_NULL) MPI_Comm_test_inter(comm, &inter);
  if (comm == MPI_COMM_NULL || inter != 0) {
    throw Error(ErrorCode::invalid_argument, "the group needs an MPI intracommunicator");
  }
}

// The handle is where MPI writes it when the last process arrives, so after a timeout it stays.
MPI_Comm duplicate(MPI_Comm comm, milliseconds deadline) {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Comm_idup(comm, copy.get(), &request) != MPI_SUCCESS) {
    throw Error(ErrorCode::peer, "MPI_Comm_idup failed", true);
  }
  detail::Patience patience;
  int code = MPI_SUCCESS;
  while (!detail::test_request(request, code)) {
    const bool late = patience.waited() > deadline;
    if (code != MPI_SUCCESS || late) (void)copy.release();
    if (code != MPI_SUCCESS) throw Error(ErrorCode::peer, "MPI_Comm_idup failed", true);
    if (late) {
      const std::string what = "all processes to duplicate the communicator";
      throw Error(ErrorCode::timeout, detail::waited_for(what, patience.waited(), deadline), true);
    }
    patience.pause();
  }
  return *copy;
}

bool allowed(milliseconds deadline) {
  return deadline > milliseconds::zero() && deadline <= longest_deadline;
}

std::string differ(const char* field, std::int64_t value, std::size_t rank, std::int64_t first) {
  return std::string(field) + ": rank " + std::to_string(rank) + " has " + std::to_string(value) +
         ", rank 0 has " + std::to_string(first);
}

// Duplicates `comm` and compares what the ranks want: all throw the same, or none does.
std::shared_ptr<MpiTransport> meet(MPI_Comm comm, const Wanted& wanted) {
  check_usable(comm);
  const milliseconds mine(wanted.deadline);
  const milliseconds deadline = allowed(mine) ? mine : default_deadline;
  auto transport = std::make_shared<MpiTransport>(duplicate(comm, deadline), deadline);
  std::vector<Wanted> all(static_cast<std::size_t>(transport->size()));
  transport->exchange_host(&wanted, all.data(), sizeof wanted);
  const Wanted& first = all.front();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Wanted& other = all[rank];
    if (!allowed(milliseconds(other.deadline))) {
      throw Error(ErrorCode::invalid_argument, "deadline: rank " + std::to_string(rank) + " has " +
                                                   std::to_string(other.deadline) +
                                                   " ms, allowed are 1 to " +
                                                   std::to_string(longest_deadline.count()));
    }
    if (other.tensor_parallel != first.tensor_parallel) {
      throw Error(ErrorCode::mismatch,
                  differ("tensor_parallel", other.tensor_parallel, rank, first.tensor_parallel));
    }
    if (other.order != first.order) {
      throw Error(ErrorCode::mismatch, differ("grid order", other.order, rank, first.order));
    }
  }
  return transport;
}

// MPI has no split that can be polled. All ranks have met just before, so this one does not wait.
Communicator split(const MpiTransport& world, int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  if (MPI_Comm_split(world.comm(), color, key, &part) != MPI_SUCCESS) {
    throw Error(ErrorCode::peer, "MPI_Comm_split failed", true);
  }
  return Communicator(std::make_shared<MpiTransport>(part, world.deadline()));
}

}  // namespace

Communicator from_mpi(MPI_Comm comm, milliseconds deadline) {
  return Communicator(meet(comm, {.deadline = deadline.count()}));
}

ProcessGrid make_grid(MPI_Comm comm, int tensor_parallel, GridOrder order, milliseconds deadline) {
  const auto world = meet(comm, {.deadline = deadline.count(),
                                 .tensor_parallel = tensor_parallel,
                                 .order = static_cast<std::int64_t>(order)});
  const int size = world->size();
  if (tensor_parallel < 1 || size % tensor_parallel != 0) {
    throw Error(ErrorCode::invalid_argument, "tensor_parallel: " + std::to_string(size) +
                                                 " ranks do not divide into groups of " +
                                                 std::to_string(tensor_parallel));
  }
  const int data_parallel = size / tensor_parallel;
  const bool contiguous = order == GridOrder::contiguous;
  const int rank = world->rank();
  const int group = contiguous ? rank / tensor_parallel : rank % data_parallel;
  const int member = contiguous ? rank % tensor_parallel : rank / data_parallel;
  return {split(*world, group, member), split(*world, member, group)};
}

}  // namespace shardloss
