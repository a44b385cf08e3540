/// \file
/// Work of a stream as a CUDA graph.
#pragma once

#include "gpu_test.hpp"

namespace shardloss::test {

/// What a function enqueues on the tests' stream. Captured in the strictest mode: a call that may
/// synchronise or allocate, from any thread of the process, breaks the capture.
class CapturedGraph {
 public:
  template <class Enqueue>
  explicit CapturedGraph(const Enqueue& enqueue) {
    cudaGraph_t graph = nullptr;
    SHARDLOSS_TEST_CUDA_CALL(
        cudaStreamBeginCapture(test_cuda_stream(), cudaStreamCaptureModeGlobal));
    try {
      enqueue();
    } catch (...) {
      if (cudaStreamEndCapture(test_cuda_stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    SHARDLOSS_TEST_CUDA_CALL(cudaStreamEndCapture(test_cuda_stream(), &graph));
    const cudaError_t status = cudaGraphInstantiate(&runnable_, graph, 0);
    cudaGraphDestroy(graph);
    SHARDLOSS_TEST_CUDA_CALL(status);
  }
  ~CapturedGraph() { cudaGraphExecDestroy(runnable_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void replay() const { SHARDLOSS_TEST_CUDA_CALL(cudaGraphLaunch(runnable_, test_cuda_stream())); }

 private:
  cudaGraphExec_t runnable_ = nullptr;
};

}  // namespace shardloss::test
