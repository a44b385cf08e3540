// Allocation and release of what the CUDA backend owns.
#include "resources.hpp"

#include <cstring>
#include <string>

namespace shardloss::detail::cuda {

void throw_cuda(const char* call, cudaError_t status) {
  throw Error(ErrorCode::device, std::string(call) + " returned " + cudaGetErrorName(status) +
                                     " (" + cudaGetErrorString(status) + "), wanted cudaSuccess");
}

void throw_cublas(const char* call, cublasStatus_t status) {
  throw Error(ErrorCode::device, std::string(call) + " returned " + cublasLtGetStatusName(status) +
                                     " (" + cublasLtGetStatusString(status) +
                                     "), wanted CUBLAS_STATUS_SUCCESS");
}

DeviceGuard::DeviceGuard(int device) {
  SHARDLOSS_CUDA(cudaGetDevice(&before_));
  if (before_ == device) return;
  SHARDLOSS_CUDA(cudaSetDevice(device));
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(before_);
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the failure is reported here, not by the next launch
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(ErrorCode::out_of_memory, "wanted " + std::to_string(bytes) +
                                              " bytes of device memory, " + std::to_string(free) +
                                              " of " + std::to_string(total) + " are free");
  }
  if (status != cudaSuccess) throw_cuda("cudaMalloc", status);
  data_ = static_cast<std::byte*>(data);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

// On a stream of its own: the default stream would wait for the caller's, and they for it.
void DeviceBuffer::write(const void* from, std::size_t bytes) {
  const OwnedStream stream;
  SHARDLOSS_CUDA(cudaMemcpyAsync(data_, from, bytes, cudaMemcpyHostToDevice, stream.get()));
  SHARDLOSS_CUDA(cudaStreamSynchronize(stream.get()));
}

PinnedMailbox::PinnedMailbox() {
  void* host = nullptr;
  SHARDLOSS_CUDA(
      cudaHostAlloc(&host, sizeof(Mailbox), cudaHostAllocMapped | cudaHostAllocPortable));
  std::memset(host, 0, sizeof(Mailbox));
  host_ = static_cast<Mailbox*>(host);
  void* device = nullptr;
  const cudaError_t status = cudaHostGetDevicePointer(&device, host, 0);
  if (status != cudaSuccess) {
    cudaFreeHost(host);
    throw_cuda("cudaHostGetDevicePointer", status);
  }
  device_ = static_cast<Mailbox*>(device);
}

PinnedMailbox::~PinnedMailbox() {
  if (host_ != nullptr) cudaFreeHost(host_);
}

OwnedStream::OwnedStream() {
  SHARDLOSS_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
OwnedStream::~OwnedStream() { cudaStreamDestroy(stream_); }

TimedEvent::TimedEvent() { SHARDLOSS_CUDA(cudaEventCreate(&event_)); }
TimedEvent::~TimedEvent() { cudaEventDestroy(event_); }

LtHandle::LtHandle() { SHARDLOSS_CUBLAS(cublasLtCreate(&handle_)); }
LtHandle::~LtHandle() { cublasLtDestroy(handle_); }

}  // namespace shardloss::detail::cuda
