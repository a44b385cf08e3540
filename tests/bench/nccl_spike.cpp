// Measures what the schedule of a pass rests on, with 2 GPUs of one host, one thread a GPU:
//   1. host microseconds to enqueue a collective, and whether it can be captured in a graph, for
//      blocking and non-blocking communicators;
//   2. what an all-reduce of dX partial sums costs beside a dW product: alone, behind it,
//   overlapped,
//      under stream priorities, numbers of CTAs, and multiprocessors set aside in the product.
// Prints one JSON object a line. Arguments: none.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int gpus = 2;

#define CHECK(call, good)                                                  \
  do {                                                                     \
    const auto status = (call);                                            \
    if (status != (good)) {                                                \
      std::fprintf(stderr, "%s: %d (line %d)\n", #call, status, __LINE__); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)
#define CUDA(call) CHECK(call, cudaSuccess)
#define LT(call) CHECK(call, CUBLAS_STATUS_SUCCESS)

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A non-blocking communicator answers in progress; wait for it as its users must.
void settle(ncclComm_t comm, ncclResult_t result) {
  while (result == ncclInProgress) ncclCommGetAsyncError(comm, &result);
  CHECK(result, ncclSuccess);
}

ncclComm_t make_comm(const ncclUniqueId& id, int rank, bool blocking, int max_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, gpus, id, rank, &config);
  settle(comm, result);
  return comm;
}

// dW[V, D] float32 = dU^T X for bf16 chunks: the product beside which dX is reduced.
class Product {
 public:
  Product(std::int64_t rows, std::int64_t hidden, std::int64_t vocab, int sms) {
    LT(cublasLtCreate(&handle_));
    LT(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t n = CUBLAS_OP_N;
    const cublasOperation_t t = CUBLAS_OP_T;
    LT(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &n, sizeof n));
    LT(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSB, &t, sizeof t));
    if (sms > 0) {
      LT(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms,
                                        sizeof sms));
    }
    LT(cublasLtMatrixLayoutCreate(&a_, CUDA_R_16BF, hidden, rows, hidden));
    LT(cublasLtMatrixLayoutCreate(&b_, CUDA_R_16BF, vocab, rows, vocab));
    LT(cublasLtMatrixLayoutCreate(&c_, CUDA_R_32F, hidden, vocab, hidden));
    cublasLtMatmulPreference_t preference = nullptr;
    LT(cublasLtMatmulPreferenceCreate(&preference));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &scratch_bytes_, sizeof scratch_bytes_));
    int found = 0;
    LT(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, a_, b_, c_, c_, preference, 1, &algo_,
                                      &found));
    CUDA(cudaMalloc(&x_, static_cast<std::size_t>(rows * hidden) * 2));
    CUDA(cudaMalloc(&u_, static_cast<std::size_t>(rows * vocab) * 2));
    CUDA(cudaMalloc(&w_, static_cast<std::size_t>(vocab * hidden) * 4));
    CUDA(cudaMalloc(&scratch_, scratch_bytes_));
    fill(x_, rows * hidden);
    fill(u_, rows * vocab);
  }
  // bf16 numbers of both signs between 0.5 and 4: constant data would run faster than real data
  // does.
  static void fill(void* data, std::int64_t count) {
    constexpr std::int64_t block = 1 << 20;
    std::vector<std::uint16_t> values(block);
    std::minstd_rand random(1);
    for (std::uint16_t& value : values) {
      value = static_cast<std::uint16_t>((random() & 0x8000U) | (0x3f00U + random() % 0x0180U));
    }
    auto* to = static_cast<std::uint16_t*>(data);
    for (std::int64_t first = 0; first < count; first += block) {
      const auto bytes = static_cast<std::size_t>(std::min(block, count - first)) * 2;
      CUDA(cudaMemcpy(to + first, values.data(), bytes, cudaMemcpyHostToDevice));
    }
  }

  void run(cudaStream_t stream) {
    const float one = 1.0F;
    const float zero = 0.0F;
    LT(cublasLtMatmul(handle_, desc_, &one, x_, a_, u_, b_, &zero, w_, c_, w_, c_, &algo_.algo,
                      scratch_, scratch_bytes_, stream));
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t algo_{};
  void *x_ = nullptr, *u_ = nullptr, *w_ = nullptr, *scratch_ = nullptr;
  std::size_t scratch_bytes_ = std::size_t{32} << 20;
};

struct Streams {
  cudaStream_t compute = nullptr, comm = nullptr;
  explicit Streams(bool priority) {
    int least = 0;
    int greatest = 0;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA(cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, least));
    CUDA(cudaStreamCreateWithPriority(&comm, cudaStreamNonBlocking, priority ? greatest : least));
  }
};

void measure_host(int rank, const ncclUniqueId& id, bool blocking, std::barrier<>& line) {
  ncclComm_t comm = make_comm(id, rank, blocking, 0);
  const Streams streams(true);
  float* data = nullptr;
  CUDA(cudaMalloc(&data, 1 << 20));
  std::vector<double> host;
  for (int i = 0; i < 60; ++i) {
    const auto from = Clock::now();
    settle(comm, ncclAllReduce(data, data, 4096, ncclFloat, ncclSum, comm, streams.comm));
    host.push_back(microseconds(from));
    CUDA(cudaStreamSynchronize(streams.comm));
  }
  line.arrive_and_wait();
  cudaGraph_t graph = nullptr;
  CUDA(cudaStreamBeginCapture(streams.comm, cudaStreamCaptureModeThreadLocal));
  ncclResult_t captured = ncclAllReduce(data, data, 4096, ncclFloat, ncclSum, comm, streams.comm);
  while (captured == ncclInProgress) ncclCommGetAsyncError(comm, &captured);
  const cudaError_t ended = cudaStreamEndCapture(streams.comm, &graph);
  bool replayed = false;
  cudaGraphExec_t exec = nullptr;
  if (captured == ncclSuccess && ended == cudaSuccess) {
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) CUDA(cudaGraphLaunch(exec, streams.comm));
    CUDA(cudaStreamSynchronize(streams.comm));
    replayed = true;
  }
  line.arrive_and_wait();
  if (exec != nullptr) CUDA(cudaGraphExecDestroy(exec));
  if (graph != nullptr) CUDA(cudaGraphDestroy(graph));
  if (rank == 0) {
    std::printf("{\"measure\": \"host\", \"blocking\": %s, \"enqueue_us\": %.1f, \"graph\": %s}\n",
                blocking ? "true" : "false", median(host), replayed ? "true" : "false");
  }
  settle(comm, ncclCommFinalize(comm));
  ncclCommDestroy(comm);
}

struct Variant {
  const char* name;
  bool product, collective, priority, collective_first;
  int max_ctas, sms;
};

void measure_overlap(int rank, const ncclUniqueId& id, const Variant& v, std::barrier<>& line) {
  constexpr std::int64_t rows = 2048;
  constexpr std::int64_t hidden = 4096;
  constexpr std::int64_t vocab = 64128;
  ncclComm_t comm = make_comm(id, rank, true, v.max_ctas);
  const Streams streams(v.priority);
  static thread_local Product plain(rows, hidden, vocab, 0);
  static thread_local Product reserved(rows, hidden, vocab, 132 - 16);
  Product& product = v.sms > 0 ? reserved : plain;
  float* partial = nullptr;
  CUDA(cudaMalloc(&partial, rows * hidden * 4));
  CUDA(cudaMemset(partial, 0, rows * hidden * 4));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEvent_t reduced = nullptr;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventCreateWithFlags(&reduced, cudaEventDisableTiming));
  std::vector<double> times;
  for (int i = 0; i < 30; ++i) {
    CUDA(cudaDeviceSynchronize());
    line.arrive_and_wait();
    CUDA(cudaEventRecord(begin, streams.compute));
    CUDA(cudaStreamWaitEvent(streams.comm, begin));
    const auto reduce = [&] {
      if (v.collective) {
        CHECK(
            ncclAllReduce(partial, partial, rows * hidden, ncclFloat, ncclSum, comm, streams.comm),
            ncclSuccess);
      }
      CUDA(cudaEventRecord(reduced, streams.comm));
    };
    if (v.collective_first) reduce();
    if (v.product) product.run(streams.compute);
    if (!v.collective_first) reduce();
    CUDA(cudaStreamWaitEvent(streams.compute, reduced));
    CUDA(cudaEventRecord(end, streams.compute));
    CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times.push_back(ms);
  }
  if (rank == 0) {
    std::printf(
        "{\"measure\": \"overlap\", \"variant\": \"%s\", \"max_ctas\": %d, \"sms_left\": %d, "
        "\"ms\": %.4f}\n",
        v.name, v.max_ctas, v.sms, median(times));
  }
  CUDA(cudaFree(partial));
  CHECK(ncclCommDestroy(comm), ncclSuccess);
}

}  // namespace

int main() {
  const std::vector<Variant> variants = {
      {"product alone", true, false, false, false, 0, 0},
      {"product alone, 16 SMs set aside", true, false, false, false, 0, 16},
      {"collective alone", false, true, false, false, 0, 0},
      {"collective alone", false, true, false, false, 4, 0},
      {"collective alone", false, true, false, false, 8, 0},
      {"collective alone", false, true, false, false, 16, 0},
      {"overlapped, product first", true, true, false, false, 0, 0},
      {"overlapped, collective first", true, true, false, true, 0, 0},
      {"overlapped, collective first, priority", true, true, true, true, 0, 0},
      {"overlapped, product first, priority", true, true, true, false, 0, 0},
      {"overlapped, collective first, priority", true, true, true, true, 4, 0},
      {"overlapped, collective first, priority", true, true, true, true, 8, 0},
      {"overlapped, collective first, priority", true, true, true, true, 16, 0},
      {"overlapped, collective first, priority, 16 SMs set aside", true, true, true, true, 16, 16},
  };
  std::vector<ncclUniqueId> ids(variants.size() + 2);
  for (ncclUniqueId& id : ids) CHECK(ncclGetUniqueId(&id), ncclSuccess);
  std::barrier<> line(gpus);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < gpus; ++rank) {
    threads.emplace_back([&, rank] {
      CUDA(cudaSetDevice(rank));
      measure_host(rank, ids[0], true, line);
      measure_host(rank, ids[1], false, line);
      for (std::size_t i = 0; i < variants.size(); ++i)
        measure_overlap(rank, ids[i + 2], variants[i], line);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
