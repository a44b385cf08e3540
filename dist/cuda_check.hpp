/// \file
/// CUDA calls that throw, and the current device put back.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "shardloss/error.hpp"

namespace shardloss::detail {

inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::device;
  throw Error(code, std::string(call) + ": " + cudaGetErrorName(status) + ", " +
                        cudaGetErrorString(status));
}

/// check_cuda with the call's own text.
#define SHARDLOSS_DIST_CUDA(call) ::shardloss::detail::check_cuda((call), #call)

/// Makes `device` current, and at the end the one that was.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    SHARDLOSS_DIST_CUDA(cudaGetDevice(&before_));
    if (before_ != device) SHARDLOSS_DIST_CUDA(cudaSetDevice(device));
    changed_ = before_ != device;
  }
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace shardloss::detail
