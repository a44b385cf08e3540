// Makes groups over NCCL.
#include "shardloss/nccl.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "nccl_handle.hpp"
#include "nccl_transport.hpp"

namespace shardloss {
namespace {

using detail::NcclHandle;
using detail::NcclTransport;
using std::chrono::milliseconds;

// Blocks of a collective sit on their multiprocessors while it waits for a rank that is behind, and
// the product beside it waits for these. So it gets few, but enough to be over before the product
// is: the wire's share of a chunk grows with the ranks. On two H200s a pass took 0.4 to 1.5 % less
// with 4 than with NCCL's 24.
int blocks_of(int ranks) {
  // What NCCL heeds before the configuration.
  const char* const chosen = std::getenv("NCCL_MAX_CTAS");
  const long most = chosen == nullptr ? 0 : std::strtol(chosen, nullptr, 0);
  return most > 0 ? static_cast<int>(std::min(most, 64L)) : std::clamp(ranks, 4, 16);
}

// Non-blocking creation could be polled, but the communicator would stay non-blocking, which costs
// ten times the host time in every collective. So creation blocks, in a thread that can be left.
ncclConfig_t configuration(int ranks) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = blocks_of(ranks);
  return config;
}

void require(ncclResult_t result, const char* call) {
  if (result != ncclSuccess) throw detail::nccl_error(result, call);
}

void require_cuda(Device device) {
  if (device.kind == DeviceKind::cuda) return;
  throw Error(ErrorCode::invalid_argument, "a NCCL group needs a CUDA device, not the CPU");
}

void require_deadline(milliseconds deadline) {
  if (deadline > milliseconds::zero() && deadline <= longest_deadline) return;
  throw Error(ErrorCode::invalid_argument, "deadline: " + std::to_string(deadline.count()) +
                                               " ms, allowed are 1 to " +
                                               std::to_string(longest_deadline.count()));
}

// Nobody can ask a borrowed communicator how many blocks it has. More than 16 may be allowed, but
// are hardly taken.
Communicator wrap(ncclComm_t comm, int device, bool owned, bool may_abort, milliseconds deadline) {
  const auto handle = std::make_shared<NcclHandle>(comm, device, owned, may_abort);
  int rank = 0;
  int size = 0;
  require(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
  require(ncclCommCount(comm, &size), "ncclCommCount");
  return Communicator(std::make_shared<NcclTransport>(
      handle, rank, size, owned ? std::min(blocks_of(size), 16) : 0, deadline));
}

// What a rank wants of a split. Nobody throws for its own arguments before all have arrived.
struct Wanted {
  int color = 0;
  int key = 0;
};

}  // namespace

NcclId make_nccl_id() {
  NcclId id{};
  require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

Communicator from_nccl_id(const NcclId& id, int size, int rank, Device device,
                          milliseconds deadline) {
  require_cuda(device);
  require_deadline(deadline);
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ErrorCode::invalid_argument,
                "rank " + std::to_string(rank) + " of " + std::to_string(size) + " ranks");
  }
  ncclComm_t const comm = detail::create_bounded(
      "ncclCommInitRankConfig", device.index, deadline, [id, size, rank](ncclComm_t* made) {
        ncclConfig_t config = configuration(size);
        return ncclCommInitRankConfig(made, size, id, rank, &config);
      });
  return wrap(comm, device.index, true, true, deadline);
}

Communicator borrow_nccl(ncclComm_t comm, Device device, AbortPolicy policy,
                         milliseconds deadline) {
  require_cuda(device);
  require_deadline(deadline);
  int its_device = 0;
  if (comm == nullptr || ncclCommCuDevice(comm, &its_device) != ncclSuccess) {
    throw Error(ErrorCode::invalid_argument, "the borrowed ncclComm_t is not usable");
  }
  if (its_device != device.index) {
    throw Error(ErrorCode::invalid_argument, "device: the communicator is on GPU " +
                                                 std::to_string(its_device) + ", not on " +
                                                 std::to_string(device.index));
  }
  return wrap(comm, device.index, false, policy == AbortPolicy::allowed, deadline);
}

Communicator split_nccl(const Communicator& parent, int color, int key) {
  auto* const transport = dynamic_cast<NcclTransport*>(&parent.transport());
  if (transport == nullptr) {
    throw Error(ErrorCode::invalid_argument, "split_nccl needs a group over NCCL, not " +
                                                 std::string(parent.transport().kind()));
  }
  const Wanted mine{color, key};
  std::vector<Wanted> all(static_cast<std::size_t>(parent.size()));
  transport->exchange_host(&mine, all.data(), sizeof mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].color >= 0) continue;
    throw Error(ErrorCode::invalid_argument,
                "color: rank " + std::to_string(rank) + " has " + std::to_string(all[rank].color));
  }
  const auto handle = transport->handle();
  const auto ranks = static_cast<int>(std::count_if(
      all.begin(), all.end(), [&](const Wanted& other) { return other.color == color; }));
  const auto split = [handle, mine, ranks](ncclComm_t* made) {
    return handle->enqueue([&](ncclComm_t comm) {
      ncclConfig_t config = configuration(ranks);
      return ncclCommSplit(comm, mine.color, mine.key, made, &config);
    });
  };
  try {
    ncclComm_t const comm =
        detail::create_bounded("ncclCommSplit", handle->device(), parent.deadline(), split);
    return wrap(comm, handle->device(), true, true, parent.deadline());
  } catch (const Error& error) {
    throw transport->fail(error);
  }
}

}  // namespace shardloss
