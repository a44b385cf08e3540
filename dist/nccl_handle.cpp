#include "nccl_handle.hpp"

#include <cuda_runtime_api.h>

#include <system_error>
#include <thread>
#include <utility>

#include "poll.hpp"

namespace shardloss::detail {
namespace {

// An aborter first asks for the lock, so as not to free a communicator in use. A thread that is
// stuck inside NCCL keeps it: then the abort is what gets it out.
constexpr std::chrono::milliseconds courtesy{300};

ErrorCode code_of(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError: return ErrorCode::device;
    case ncclSystemError:
    case ncclRemoteError: return ErrorCode::peer;
    default: return ErrorCode::internal;
  }
}

}  // namespace

Error nccl_error(ncclResult_t result, const std::string& call) {
  std::string text = call + ": " + ncclGetErrorString(result);
  const char* const detail = ncclGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') text += std::string(", ") + detail;
  return {code_of(result), text, true};
}

NcclHandle::~NcclHandle() {
  if (owned_ && !ended_) (void)ncclCommAbort(comm_);
}

// A loop of its own instead of poll(): the watchdog's abort ends it, through ended_.
ncclResult_t NcclHandle::settle() {
  Patience patience;
  ncclResult_t state = ncclInProgress;
  while (!ended_) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclInProgress) return state;
    patience.pause();
  }
  return ncclInvalidUsage;
}

ncclResult_t NcclHandle::asynchronous_error() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || ended_) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) return asked;
  return state == ncclInProgress ? ncclSuccess : state;
}

std::chrono::nanoseconds NcclHandle::inside() const noexcept {
  const std::int64_t entered = entered_;
  return std::chrono::nanoseconds(entered == 0 ? 0 : now() - entered);
}

void NcclHandle::end_in_thread(ncclResult_t (*finish)(ncclComm_t)) {
  {
    const std::scoped_lock lock(over_mutex_);
    over_ = false;
  }
  auto work = [self = shared_from_this(), finish] {
    {
      std::unique_lock lock(self->mutex_, std::defer_lock);
      (void)lock.try_lock_for(courtesy);
      (void)cudaSetDevice(self->device_);
      (void)finish(self->comm_);
    }
    const std::scoped_lock lock(self->over_mutex_);
    self->over_ = true;
    self->over_changed_.notify_all();
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {
    work();  // no thread to be had: better late than never
  }
}

void NcclHandle::abort() {
  if (ended_.exchange(true) || !may_abort_) return;
  end_in_thread(&ncclCommAbort);
}

bool NcclHandle::wait_ended(std::chrono::milliseconds bound) {
  std::unique_lock lock(over_mutex_);
  return over_changed_.wait_for(lock, bound, [this] { return over_; });
}

bool NcclHandle::destroy(std::chrono::milliseconds bound) {
  if (ended_.exchange(true) || !owned_) return true;
  end_in_thread(&ncclCommDestroy);
  return wait_ended(bound);
}

ncclComm_t create_bounded(const char* what, int device, std::chrono::milliseconds deadline,
                          std::function<ncclResult_t(ncclComm_t*)> create) {
  struct Attempt {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    bool abandoned = false;
    ncclResult_t result = ncclSuccess;
    ncclComm_t comm = nullptr;
  };
  const auto attempt = std::make_shared<Attempt>();
  std::thread([attempt, device, create = std::move(create)] {
    ncclComm_t comm = nullptr;
    ncclResult_t result =
        cudaSetDevice(device) == cudaSuccess ? create(&comm) : ncclUnhandledCudaError;
    std::unique_lock lock(attempt->mutex);
    attempt->over = true;
    attempt->result = result;
    attempt->comm = comm;
    attempt->changed.notify_all();
    const bool late = attempt->abandoned;
    lock.unlock();
    if (late && result == ncclSuccess) (void)ncclCommAbort(comm);
  }).detach();

  Patience patience;
  std::unique_lock lock(attempt->mutex);
  if (!attempt->changed.wait_for(lock, deadline, [&] { return attempt->over; })) {
    attempt->abandoned = true;
    throw Error(ErrorCode::timeout,
                waited_for(std::string("all ranks in ") + what, patience.waited(), deadline), true);
  }
  if (attempt->result != ncclSuccess) throw nccl_error(attempt->result, what);
  return attempt->comm;
}

}  // namespace shardloss::detail
