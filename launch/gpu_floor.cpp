#include "gpu_floor.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

constexpr std::size_t workspace_bytes = 32 << 20;  // the library's
constexpr int most_candidates = 16;
constexpr int rounds = 3;
constexpr float burst_ms = 60, settling_ms = 20;  // the second is the beginning of the first

void check_lt(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorCode::device, std::string(what) + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::bfloat16: return CUDA_R_16BF;
    case DType::float16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

cublasLtMatrixLayout_t layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t out = nullptr;
  check_lt(cublasLtMatrixLayoutCreate(&out, cuda_type(dtype), static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), rows),
           "cublasLtMatrixLayoutCreate");
  return out;
}

/// What was chosen for products of some sizes: F is the same in all rows of a sweep.
struct Chosen {
  cublasLtMatmulAlgo_t algorithm{};
  std::string text;
  int tried = 0;
};
std::map<std::string, Chosen>& chosen() {
  static std::map<std::string, Chosen> all;
  return all;
}

/// Milliseconds of one of `times` runs, behind `before` others that are not counted.
float time_of(const std::function<void()>& run, int before, int times, cudaStream_t stream) {
  DeviceEvent start, end;
  for (int i = 0; i < before; ++i) run();
  start.record(stream);
  for (int i = 0; i < times; ++i) run();
  end.record(stream);
  check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, start.get(), end.get()), "cudaEventElapsedTime");
  return milliseconds / static_cast<float>(times);
}

}  // namespace

// cublasLt counts column by column, so each product is handed over transposed: logits^T = W X^T,
// dX^T = W^T dU^T, dW^T = X^T dU.
LtProduct::LtProduct(cublasLtHandle_t handle, Kind kind, const FloorShape& s, std::int64_t rows)
    : handle_(handle) {
  for (const std::int64_t size :
       {static_cast<std::int64_t>(kind), rows, s.hidden, s.vocab,
        static_cast<std::int64_t>(s.dtype), static_cast<std::int64_t>(s.logits),
        static_cast<std::int64_t>(s.grad_hidden), static_cast<std::int64_t>(s.grad_weight)})
    sizes_ += std::to_string(size) + " ";
  check_lt(cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "cublasLtMatmulDescCreate");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const auto transposed = [&](cublasLtMatmulDescAttributes_t which) {
    check_lt(cublasLtMatmulDescSetAttribute(description_, which, &transpose, sizeof transpose),
             "cublasLtMatmulDescSetAttribute");
  };
  switch (kind) {
    case Kind::logits:  // a = W, b = X
      transposed(CUBLASLT_MATMUL_DESC_TRANSA);
      a_ = layout(s.dtype, s.hidden, s.vocab);
      b_ = layout(s.dtype, s.hidden, rows);
      d_ = layout(s.logits, s.vocab, rows);
      break;
    case Kind::grad_hidden:  // a = W, b = dU
      a_ = layout(s.dtype, s.hidden, s.vocab);
      b_ = layout(s.dtype, s.vocab, rows);
      d_ = layout(s.grad_hidden, s.hidden, rows);
      break;
    case Kind::grad_weight:  // a = X, b = dU
      transposed(CUBLASLT_MATMUL_DESC_TRANSB);
      a_ = layout(s.dtype, s.hidden, rows);
      b_ = layout(s.dtype, s.vocab, rows);
      d_ = layout(s.grad_weight, s.hidden, s.vocab);
      // Numbers as small as gradients are; a sum of logits would run away over the repetitions.
      alpha_ = 1e-6f;
      break;
  }
}

LtProduct::~LtProduct() {
  (void)cublasLtMatrixLayoutDestroy(a_);
  (void)cublasLtMatrixLayoutDestroy(b_);
  (void)cublasLtMatrixLayoutDestroy(d_);
  (void)cublasLtMatmulDescDestroy(description_);
}

// A card at its limit of power sets its clock by what it has run for some ten milliseconds. So each
// runs in bursts, long enough to pay for the energy that it takes.
int LtProduct::tune(const void* a, const void* b, void* d, float beta,
                    const DeviceMemory& workspace, cudaStream_t stream) {
  const std::string key = sizes_ + (beta != 0 ? "adds" : "overwrites");
  if (const auto known = chosen().find(key); known != chosen().end()) {
    algorithm_ = known->second.algorithm;
    choice_ = known->second.text;
    return known->second.tried;
  }
  cublasLtMatmulPreference_t preference = nullptr;
  check_lt(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::size_t bytes = workspace.bytes();
  (void)cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &bytes, sizeof bytes);
  std::array<cublasLtMatmulHeuristicResult_t, most_candidates> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, description_, a_, b_, d_, d_, preference, most_candidates, found.data(), &count);
  (void)cublasLtMatmulPreferenceDestroy(preference);
  check_lt(status, "cublasLtMatmulAlgoGetHeuristic");

  struct Candidate {
    std::size_t number;
    std::vector<float> times;
    float median() const {
      std::vector<float> sorted = times;
      std::sort(sorted.begin(), sorted.end());
      return sorted[sorted.size() / 2];
    }
  };
  const auto time = [&](const Candidate& one, int before, int times) {
    algorithm_ = found.at(one.number).algo;
    return time_of([&] { run(a, b, d, beta, workspace, stream); }, before, times, stream);
  };
  std::vector<Candidate> ran;
  for (std::size_t number = 0; number < static_cast<std::size_t>(count); ++number) {
    if (found.at(number).state != CUBLAS_STATUS_SUCCESS) continue;
    try {
      Candidate one{number, {}};
      (void)time(one, 0, 1);
      ran.push_back(one);
    } catch (const Error&) {
      (void)cudaGetLastError();  // this one does not run here
    }
  }
  if (ran.empty())
    throw Error(ErrorCode::device, "none of cublasLt's " + std::to_string(count) +
                                       " algorithms for a product of the floor runs");
  const int tried = static_cast<int>(ran.size());
  std::vector<float> once;
  once.reserve(ran.size());
  for (const Candidate& one : ran) once.push_back(std::max(time(one, 1, 1), 1e-3f));
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < ran.size(); ++i) {
      const auto times = [&](float ms) {
        return std::max(1, static_cast<int>(std::ceil(ms / once[i])));
      };
      ran[i].times.push_back(time(ran[i], times(settling_ms), times(burst_ms - settling_ms)));
    }
  }
  const auto best = std::min_element(
      ran.begin(), ran.end(),
      [](const Candidate& l, const Candidate& r) { return l.median() < r.median(); });
  algorithm_ = found.at(best->number).algo;
  std::uint32_t tile = 0;
  std::uint16_t cluster = 0;
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm_, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
                                             sizeof tile, nullptr);
  (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm_, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                             &cluster, sizeof cluster, nullptr);
  choice_ = "number " + std::to_string(best->number + 1) + " of " + std::to_string(count) +
            ", tile " + std::to_string(tile) + " cluster " + std::to_string(cluster) + ", " +
            std::to_string(best->median()) + " ms";
  chosen()[key] = {algorithm_, choice_, tried};
  return tried;
}

void LtProduct::run(const void* a, const void* b, void* d, float beta,
                    const DeviceMemory& workspace, cudaStream_t stream) {
  check_lt(cublasLtMatmul(handle_, description_, &alpha_, a, a_, b, b_, &beta, d, d_, d, d_,
                          &algorithm_, workspace.data(), workspace.bytes(), stream),
           "cublasLtMatmul");
}

struct GpuFloor::Trio {
  Trio(cublasLtHandle_t handle, const FloorShape& shape, std::int64_t count)
      : rows(count),
        logits(handle, LtProduct::Kind::logits, shape, count),
        grad_hidden(handle, LtProduct::Kind::grad_hidden, shape, count),
        grad_weight(handle, LtProduct::Kind::grad_weight, shape, count) {}
  std::int64_t rows;
  LtProduct logits, grad_hidden, grad_weight;
};

GpuFloor::GpuFloor(const FloorShape& shape, const void* hidden, const void* weight,
                   cudaStream_t stream)
    : shape_(shape), hidden_(hidden), weight_(weight), stream_(stream) {
  const std::int64_t chunk = std::min(shape.chunk_rows, shape.rows);
  const auto bytes = [](std::int64_t elements, DType dtype) {
    return static_cast<std::size_t>(elements) * size_of(dtype);
  };
  check_lt(cublasLtCreate(&handle_), "cublasLtCreate");
  logits_ = DeviceMemory(bytes(chunk * shape.vocab, shape.logits));
  grad_hidden_ = DeviceMemory(bytes(shape.rows * shape.hidden, shape.grad_hidden));
  grad_weight_ = DeviceMemory(bytes(shape.vocab * shape.hidden, shape.grad_weight));
  workspace_ = DeviceMemory(workspace_bytes);
  check_cuda(cudaMemsetAsync(grad_weight_.data(), 0, grad_weight_.bytes(), stream),
             "cudaMemsetAsync");  // it is added to
  full_ = std::make_unique<Trio>(handle_, shape, chunk);
  if (shape.rows % chunk != 0) tail_ = std::make_unique<Trio>(handle_, shape, shape.rows % chunk);
  candidates_ = most_candidates;
  for (Trio* trio : {full_.get(), tail_.get()}) {
    if (trio == nullptr) continue;
    void* u = logits_.data();
    const float adds = shape.rows > chunk ? 1.0f : 0.0f;  // as all chunks but the first
    for (const int found :
         {trio->logits.tune(weight_, hidden_, u, 0, workspace_, stream),
          trio->grad_hidden.tune(weight_, u, grad_hidden_.data(), 0, workspace_, stream),
          trio->grad_weight.tune(hidden_, u, grad_weight_.data(), adds, workspace_, stream)})
      candidates_ = std::min(candidates_, found);
  }
}

GpuFloor::~GpuFloor() {
  full_.reset();
  tail_.reset();
  (void)cublasLtDestroy(handle_);
}

void GpuFloor::run_chunk(Trio& trio, std::int64_t first) {
  const auto* x = static_cast<const std::byte*>(hidden_) +
                  first * shape_.hidden * static_cast<std::int64_t>(size_of(shape_.dtype));
  auto* dx = grad_hidden_.as<std::byte>() +
             first * shape_.hidden * static_cast<std::int64_t>(size_of(shape_.grad_hidden));
  trio.logits.run(weight_, x, logits_.data(), 0, workspace_, stream_);
  trio.grad_hidden.run(weight_, logits_.data(), dx, 0, workspace_, stream_);
  trio.grad_weight.run(x, logits_.data(), grad_weight_.data(), first == 0 ? 0.0f : 1.0f, workspace_,
                       stream_);
}

void GpuFloor::run() {
  for (std::int64_t first = 0; first < shape_.rows; first += full_->rows)
    run_chunk(shape_.rows - first < full_->rows ? *tail_ : *full_, first);
}

std::vector<std::string> GpuFloor::choices() const {
  return {"logits: " + full_->logits.choice(), "grad_hidden: " + full_->grad_hidden.choice(),
          "grad_weight: " + full_->grad_weight.choice()};
}

double GpuFloor::flops() const {
  return 6.0 * static_cast<double>(shape_.rows) * static_cast<double>(shape_.hidden) *
         static_cast<double>(shape_.vocab);
}

}  // namespace shardloss::launch
