/// \file
/// A NCCL communicator that can be left at any time.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "shardloss/error.hpp"

namespace shardloss::detail {

/// NCCL's error as ours, fatal.
Error nccl_error(ncclResult_t result, const std::string& call);

/// Every use of a ncclComm_t goes through here, since an abort frees it under the other threads'
/// feet. Held by a shared pointer: helper threads outlive the transport when NCCL does not return.
class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  NcclHandle(ncclComm_t comm, int device, bool owned, bool may_abort)
      : comm_(comm), device_(device), owned_(owned), may_abort_(may_abort) {}
  /// Aborts what was neither aborted nor destroyed: the transport's constructor threw.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  int device() const noexcept { return device_; }

  /// use(comm), unless the communicator has ended. Also brings the calls on a borrowed non-blocking
  /// communicator to their end.
  template <class F>
  ncclResult_t enqueue(F&& use) {
    const std::scoped_lock lock(mutex_);
    if (ended_) return ncclInvalidUsage;
    entered_ = now();
    ncclResult_t result = use(comm_);
    if (result == ncclInProgress) result = settle();
    entered_ = 0;
    return result;
  }

  /// An error that NCCL met on its own; ncclSuccess while another thread is enqueuing.
  ncclResult_t asynchronous_error() noexcept;
  /// How long a call into NCCL has not returned: peers are needed when it connects to them.
  std::chrono::nanoseconds inside() const noexcept;

  /// Ends all operations, from a thread of its own; returns at once. Only the first call counts.
  void abort();
  /// Whether an abort that was begun is over, after at most `bound`.
  bool wait_ended(std::chrono::milliseconds bound);
  /// After all operations are over: gives a communicator that is ours back. False when NCCL has not
  /// returned within `bound`; its thread and resources then stay.
  bool destroy(std::chrono::milliseconds bound);

 private:
  static std::int64_t now() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }
  ncclResult_t settle();
  void end_in_thread(ncclResult_t (*finish)(ncclComm_t));

  ncclComm_t comm_;
  int device_;
  bool owned_;
  bool may_abort_;
  std::timed_mutex mutex_;  // held while a thread is inside NCCL
  std::atomic<bool> ended_{false};
  std::atomic<std::int64_t> entered_{0};
  std::mutex over_mutex_;
  std::condition_variable over_changed_;
  bool over_ = true;  // no helper thread is at work
};

/// Runs create(&comm), which waits for peers, in a thread of its own. Past the deadline throws
/// Error(timeout) and leaves the thread to itself; should it succeed later, it aborts what it made.
ncclComm_t create_bounded(const char* what, int device, std::chrono::milliseconds deadline,
                          std::function<ncclResult_t(ncclComm_t*)> create);

}  // namespace shardloss::detail
