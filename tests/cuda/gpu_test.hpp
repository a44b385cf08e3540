/// \file
/// The fixture of tests that are about GPUs: a GPU for each rank, or one that they share;
/// skipped with the reason.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "rank_test.hpp"

namespace shardloss::test {

/// These tests run on GPUs, whatever the environment says.
inline const int gpu_chosen = setenv("SHARDLOSS_TEST_DEVICE", "cuda", 1);

inline void require_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(status) + ", " +
                           cudaGetErrorString(status));
}

/// Throws where a CUDA call of a test fails: the fixture or the peer reports it.
#define SHARDLOSS_TEST_CUDA_CALL(call) ::shardloss::test::require_cuda((call), #call)

inline cudaStream_t test_cuda_stream() { return static_cast<cudaStream_t>(test_stream().handle); }

class GpuTest : public RankTest {
 protected:
  void SetUp() override {
    SHARDLOSS_NEEDS_DEVICE();
    SHARDLOSS_TEST_CUDA_CALL(cudaSetDevice(device().index));
    RankTest::SetUp();
  }
};

/// Copies to the device under test, and has arrived.
inline void copy_to_device(void* to, const void* from, std::size_t bytes) {
  SHARDLOSS_TEST_CUDA_CALL(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  // From pageable memory it may still be under way, and tests' streams do not wait for it.
  SHARDLOSS_TEST_CUDA_CALL(cudaStreamSynchronize(cudaStreamLegacy));
}

/// Of the device under test.
inline std::size_t free_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  SHARDLOSS_TEST_CUDA_CALL(cudaDeviceSynchronize());
  SHARDLOSS_TEST_CUDA_CALL(cudaMemGetInfo(&free, &total));
  return free;
}

}  // namespace shardloss::test
