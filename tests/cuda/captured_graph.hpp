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
    const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes_);
    const cudaError_t status = cudaGraphInstantiate(&runnable_, graph, 0);
    cudaGraphDestroy(graph);
    SHARDLOSS_TEST_CUDA_CALL(counted);
    SHARDLOSS_TEST_CUDA_CALL(status);
  }
  ~CapturedGraph() { cudaGraphExecDestroy(runnable_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  std::size_t nodes() const { return nodes_; }
  void replay() const { SHARDLOSS_TEST_CUDA_CALL(cudaGraphLaunch(runnable_, test_cuda_stream())); }

 private:
  cudaGraphExec_t runnable_ = nullptr;
  std::size_t nodes_ = 0;
};

/// A pass, only enqueued. `saved`: where a pass of two steps keeps its rows.
inline void enqueue(const Loss& loss, const Tensors& tensors, Way way, Saved& saved) {
  const Execution on{test_stream()};
  if (way == Way::fused) {
    loss.forward_backward(tensors.inputs(), tensors.outputs(), tensors.upstreams(),
                          tensors.gradients(), on);
    return;
  }
  loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
  loss.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), on);
}

/// A pass over a sample's tensors as a graph.
class CapturedPass {
 public:
  CapturedPass(const Sample& sample, const Communicator& communicator, Way way = Way::fused)
      : loss(sample.problem, communicator, device()),
        tensors(sample, rank(), ranks(), device()),
        saved_(loss.make_saved()),
        graph_(capture(way)) {}

  /// Replays the graph and waits for it.
  void replay() const {
    graph_.replay();
    loss.wait(test_stream());
  }

  const Loss loss;
  Tensors tensors;

 private:
  // Runs once before: in the capture nothing is loaded or connected for the first time.
  CapturedGraph capture(Way way) {
    enqueue(loss, tensors, way, saved_);
    loss.wait(test_stream());
    return CapturedGraph([&] { enqueue(loss, tensors, way, saved_); });
  }

  Saved saved_;
  CapturedGraph graph_;
};

}  // namespace shardloss::test
