/// \file
/// What the CUDA backend owns, each as a value that releases itself, and the checks of CUDA and
/// cuBLAS calls.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "shardloss/communicator.hpp"
#include "shardloss/error.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::detail::cuda {

[[noreturn]] void throw_cuda(const char* call, cudaError_t status);
[[noreturn]] void throw_cublas(const char* call, cublasStatus_t status);

/// Throws Error(device) that names the call, what it returned and what was wanted.
#define SHARDLOSS_CUDA(call)                                                           \
  do {                                                                                 \
    const cudaError_t status_ = (call);                                                \
    if (status_ != cudaSuccess) ::shardloss::detail::cuda::throw_cuda(#call, status_); \
  } while (false)

/// The same for cuBLAS.
#define SHARDLOSS_CUBLAS(call)                                                                     \
  do {                                                                                             \
    const cublasStatus_t status_ = (call);                                                         \
    if (status_ != CUBLAS_STATUS_SUCCESS) ::shardloss::detail::cuda::throw_cublas(#call, status_); \
  } while (false)

/// The same for the kernel launched last.
#define SHARDLOSS_LAUNCHED(kernel)                                         \
  do {                                                                     \
    const cudaError_t status_ = cudaPeekAtLastError();                     \
    if (status_ != cudaSuccess)                                            \
      ::shardloss::detail::cuda::throw_cuda("launch of " kernel, status_); \
  } while (false)

/// Makes a device current, and the one before again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// Device memory of the current device; throws Error(out_of_memory).
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  template <class T = std::byte>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Writes `value` to its beginning; it is there on return.
  template <class T>
  void fill(const T& value) {
    write(&value, sizeof value);
  }
  /// Gives the memory up without freeing it.
  std::byte* release() noexcept { return std::exchange(data_, nullptr); }

 private:
  void write(const void* from, std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A Mailbox in pinned host memory that kernels write.
class PinnedMailbox {
 public:
  PinnedMailbox();
  ~PinnedMailbox();
  PinnedMailbox(const PinnedMailbox&) = delete;
  PinnedMailbox& operator=(const PinnedMailbox&) = delete;

  Mailbox* host() const noexcept { return host_; }
  Mailbox* device() const noexcept { return device_; }
  /// Leaves it to kernels that may still write it.
  void release() noexcept { host_ = nullptr; }

 private:
  Mailbox* host_ = nullptr;
  Mailbox* device_ = nullptr;
};

/// A stream of the current device that does not wait for the default stream.
class OwnedStream {
 public:
  OwnedStream();
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event with time.
class TimedEvent {
 public:
  TimedEvent();
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A cublasLt handle of the current device.
class LtHandle {
 public:
  LtHandle();
  ~LtHandle();
  LtHandle(const LtHandle&) = delete;
  LtHandle& operator=(const LtHandle&) = delete;
  cublasLtHandle_t get() const noexcept { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace shardloss::detail::cuda
