/// \file
/// Groups over NCCL, for CUDA ranks: one process or thread a GPU.
#pragma once

#include <nccl.h>

#include <array>
#include <chrono>

#include "shardloss/communicator.hpp"
#include "shardloss/export.hpp"

namespace shardloss {

/// The id by which ranks find each other: made on one rank, carried to the others by any means.
using NcclId = ncclUniqueId;

/// A fresh id, on one rank.
SHARDLOSS_API NcclId make_nccl_id();

/// A group of `size` ranks that all hold `id`, on this process's `device`. Collective; bounded by
/// the deadline. A watchdog thread, one for the process, aborts the group when a call outlasts the
/// deadline or NCCL reports an error, so that a stream synchronisation returns too.
SHARDLOSS_API Communicator from_nccl_id(const NcclId& id, int size, int rank, Device device,
                                        std::chrono::milliseconds deadline = default_deadline);

/// Whether the library may abort a communicator that it does not own.
enum class AbortPolicy { never, allowed };

/// A group over the caller's communicator, which must outlive the handle and serve nothing else
/// while calls are outstanding. With AbortPolicy::never a lost peer is reported by wait(), but a
/// stream that holds its operations stays stuck until the owner aborts.
SHARDLOSS_API Communicator borrow_nccl(ncclComm_t comm, Device device, AbortPolicy policy,
                                       std::chrono::milliseconds deadline = default_deadline);

/// The part of `parent` that passes the same `color`, ranked by `key`. Collective over `parent`.
SHARDLOSS_API Communicator split_nccl(const Communicator& parent, int color, int key);

}  // namespace shardloss
