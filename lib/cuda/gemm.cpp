// cublasLt: descriptions of the three products, and the choice of their algorithms.
#include "gemm.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "contest.hpp"
#include "gemm_cache.hpp"
#include "kernels.hpp"

namespace shardloss::detail::cuda {
namespace {

constexpr int most_candidates = 16;
constexpr const char* product_names[] = {"logits", "grad_hidden", "grad_weight"};

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bfloat16: return CUDA_R_16BF;
    case DType::float16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  SHARDLOSS_CUBLAS(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  SHARDLOSS_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

template <class T>
T config_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return value;
}

std::string describe(const cublasLtMatmulAlgo_t& algorithm, int multiprocessors) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(),
                "cublasLt algorithm %d tile %u stages %u cluster %u split %d",
                config_of<int>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
                config_of<unsigned>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                config_of<unsigned>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                static_cast<unsigned>(
                    config_of<std::uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)),
                config_of<int>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  return text.data() +
         (multiprocessors > 0 ? " on " + std::to_string(multiprocessors) + " multiprocessors" : "");
}

// Elements of a column-major matrix whose last column may be short.
std::size_t matrix_bytes(std::int64_t columns, std::int64_t ld, DType dtype) {
  return static_cast<std::size_t>(columns * ld) * size_of(dtype);
}

class Preference {
 public:
  Preference(const GemmShape& shape, std::size_t workspace_bytes) {
    SHARDLOSS_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_));
    const auto align = [](int bytes) { return static_cast<std::uint32_t>(bytes); };
    set(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align(shape.align_a));
    set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align(shape.align_b));
    set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align(shape.align_d));
    set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align(shape.align_d));
    // Split sums are added up in float32 and in a fixed order, or not at all.
    const std::uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

int alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (int bytes = most_alignment; bytes > 1; bytes /= 2)
    if (address % static_cast<std::uintptr_t>(bytes) == 0) return bytes;
  return 1;
}

// A product's description, layouts and algorithm.
struct Gemms::Prepared {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  GemmAlgorithm chosen;

  explicit Prepared(const GemmShape& shape) {
    const bool logits = shape.product == Product::logits;
    const bool weight = shape.product == Product::grad_weight;
    const auto rows = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
    SHARDLOSS_CUBLAS(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, logits ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, weight ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(description, CUBLASLT_MATMUL_DESC_POINTER_MODE,
        shape.scaled ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
    if (shape.multiprocessors > 0)
      set(description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, shape.multiprocessors);
    if (shape.bias) {
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(shape.output));
      // Heuristics look at the pointer's alignment, not behind it.
      set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(256));
    }
    const cudaDataType_t input = type_of(shape.input);
    SHARDLOSS_CUBLAS(cublasLtMatrixLayoutCreate(&a, input, rows(logits ? shape.k : shape.m),
                                                rows(logits ? shape.m : shape.k), shape.lda));
    SHARDLOSS_CUBLAS(cublasLtMatrixLayoutCreate(&b, input, rows(weight ? shape.n : shape.k),
                                                rows(weight ? shape.k : shape.n), shape.ldb));
    SHARDLOSS_CUBLAS(cublasLtMatrixLayoutCreate(&d, type_of(shape.output), rows(shape.m),
                                                rows(shape.n), shape.ldd));
  }
  ~Prepared() {
    if (d != nullptr) cublasLtMatrixLayoutDestroy(d);
    if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
    if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
    if (description != nullptr) cublasLtMatmulDescDestroy(description);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  void enqueue(cublasLtHandle_t handle, const GemmShape& shape, const GemmOperands& on,
               const float* device_constants, const cublasLtMatmulAlgo_t& algorithm,
               std::size_t workspace_bytes, cudaStream_t stream) {
    static constexpr float host_constants[] = {0.0f, 1.0f};
    const float* const constants = shape.scaled ? device_constants : host_constants;
    const float* const alpha = shape.scaled ? on.alpha : constants + 1;
    const float* const beta = constants + (on.accumulate ? 1 : 0);
    if (shape.bias) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, on.bias);
    SHARDLOSS_CUBLAS(cublasLtMatmul(handle, description, alpha, on.a, a, on.b, b, beta, on.d, d,
                                    on.d, d, &algorithm, on.workspace, workspace_bytes, stream));
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates(cublasLtHandle_t handle,
                                                          const GemmShape& shape,
                                                          std::size_t workspace_bytes, int most) {
    const Preference preference(shape, workspace_bytes);
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, description, a, b, d, d, preference.get(), most, found.data(), &count);
    found.resize(static_cast<std::size_t>(count));
    std::erase_if(found, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
    if (status != CUBLAS_STATUS_SUCCESS || found.empty()) {
      throw Error(ErrorCode::device,
                  "cublasLt has no algorithm for the " +
                      std::string(product_names[static_cast<int>(shape.product)]) + " product " +
                      std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " +
                      std::to_string(shape.k) + " of " + std::string(name(shape.input)) + " into " +
                      std::string(name(shape.output)) + ": found " + std::to_string(count) + " (" +
                      cublasLtGetStatusName(status) + "), wanted at least 1");
    }
    return found;
  }

  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
               std::size_t workspace_bytes) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle, description, a, b, d, d, &algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= workspace_bytes;
  }
};

Gemms::Gemms(GemmChoice choice, std::size_t workspace_bytes)
    : constants_(2 * sizeof(float)), choice_(choice), workspace_bytes_(workspace_bytes) {
  constants_.fill(std::array{0.0f, 1.0f});
  int device = 0;
  SHARDLOSS_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  SHARDLOSS_CUDA(cudaGetDeviceProperties(&properties, device));
  card_ = properties.name;
}

Gemms::~Gemms() = default;

std::string Gemms::key_of(const GemmShape& s) const {
  const auto text = [](auto... values) {
    std::string all;
    ((all += " " + std::to_string(values)), ...);
    return all;
  };
  return card_ + ", cublasLt" + text(cublasLtGetVersion()) + ", " +
         product_names[static_cast<int>(s.product)] + ", m n k" + text(s.m, s.n, s.k) + ", ld" +
         text(s.lda, s.ldb, s.ldd) + ", " + std::string(name(s.input)) + " to " +
         std::string(name(s.output)) + (s.bias ? " with bias" : "") + (s.scaled ? " scaled" : "") +
         (s.multiprocessors > 0 ? ", multiprocessors" + text(s.multiprocessors) : "") +
         ", aligned" + text(s.align_a, s.align_b, s.align_d) + ", workspace" +
         text(workspace_bytes_) + ", in bursts";
}

std::string Gemms::prepare(const GemmShape& shape) {
  const std::lock_guard lock(mutex_);
  return find(shape, choice_ == GemmChoice::tuned).chosen.text;
}

void Gemms::run(const GemmShape& shape, const GemmOperands& operands, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  Prepared& prepared = find(shape, false);
  prepared.enqueue(handle_.get(), shape, operands, constants_.as<float>(),
                   prepared.chosen.algorithm, workspace_bytes_, stream);
}

Gemms::Prepared& Gemms::find(const GemmShape& shape, bool may_time) {
  const auto known = prepared_.find(shape);
  if (known != prepared_.end()) return known->second;
  Prepared& prepared = prepared_.try_emplace(shape, shape).first->second;
  try {
    prepared.chosen = choose(shape, prepared, may_time);
  } catch (...) {
    prepared_.erase(shape);
    throw;
  }
  return prepared;
}

GemmAlgorithm Gemms::choose(const GemmShape& shape, Prepared& prepared, bool may_time) {
  const std::string key = key_of(shape);
  const auto cached = find_cached(key);
  if (cached && prepared.accepts(handle_.get(), cached->algorithm, workspace_bytes_))
    return {cached->algorithm, cached->text};
  if (may_time) return time(shape, prepared, key);
  const auto first = prepared.candidates(handle_.get(), shape, workspace_bytes_, 1).at(0);
  return {first.algo, describe(first.algo, shape.multiprocessors) + ", cublasLt's first"};
}

GemmAlgorithm Gemms::time(const GemmShape& shape, Prepared& prepared, const std::string& key) {
  const auto found = prepared.candidates(handle_.get(), shape, workspace_bytes_, most_candidates);
  if (found.size() == 1)
    return {found[0].algo,
            describe(found[0].algo, shape.multiprocessors) + ", cublasLt's only one"};
  const bool logits = shape.product == Product::logits;
  const bool weight = shape.product == Product::grad_weight;
  const OwnedStream stream;
  DeviceBuffer a(matrix_bytes(logits ? shape.m : shape.k, shape.lda, shape.input));
  DeviceBuffer b(matrix_bytes(weight ? shape.k : shape.n, shape.ldb, shape.input));
  DeviceBuffer d(matrix_bytes(shape.n, shape.ldd, shape.output));
  DeviceBuffer bias(shape.bias ? matrix_bytes(1, shape.m, shape.output) : 0);
  DeviceBuffer workspace(workspace_bytes_);
  const auto fill = [&](DeviceBuffer& buffer, DType dtype, float deviation, std::uint64_t seed) {
    fill_random(buffer.as<void>(), dtype,
                static_cast<std::int64_t>(buffer.bytes() / size_of(dtype)), deviation, seed,
                stream.get());
  };
  fill(a, shape.input, 1.0f, 1);
  fill(b, shape.input, 0.05f, 2);
  if (shape.bias) fill(bias, shape.output, 1.0f, 3);
  SHARDLOSS_CUDA(cudaMemsetAsync(d.as(), 0, d.bytes(), stream.get()));
  const GemmOperands on{a.as(), b.as(),        d.as(), bias.as(), constants_.as<float>() + 1,
                        weight, workspace.as()};

  const ContestResult result = contest(
      found.size(),
      [&](std::size_t i) {
        prepared.enqueue(handle_.get(), shape, on, constants_.as<float>(), found[i].algo,
                         workspace_bytes_, stream.get());
      },
      stream.get());
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), ", number %zu of %zu, timed %.3f ms, the first %.3f ms",
                result.winner + 1, found.size(), static_cast<double>(result.winner_ms),
                static_cast<double>(result.first_ms));
  const CachedAlgorithm kept{
      found[result.winner].algo,
      describe(found[result.winner].algo, shape.multiprocessors) + text.data()};
  keep_cached(key, kept);
  return {kept.algorithm, kept.text};
}

}  // namespace shardloss::detail::cuda
