#include "gemm_description.hpp"

#include <array>
#include <cstdio>

namespace shardloss::detail::cuda {
namespace {

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

Owned<cublasLtMatrixLayoutDestroy> layout(DType dtype, std::int64_t rows, std::int64_t columns,
                                          std::int64_t ld) {
  cublasLtMatrixLayout_t created = nullptr;
  SHARDLOSS_CUBLAS(cublasLtMatrixLayoutCreate(&created, type_of(dtype),
                                              static_cast<std::uint64_t>(rows),
                                              static_cast<std::uint64_t>(columns), ld));
  return Owned<cublasLtMatrixLayoutDestroy>(created);
}

class Preference {
 public:
  Preference(const GemmShape& shape, std::size_t workspace_bytes) {
    cublasLtMatmulPreference_t created = nullptr;
    SHARDLOSS_CUBLAS(cublasLtMatmulPreferenceCreate(&created));
    preference_.reset(created);
    const auto align = [](int bytes) { return static_cast<std::uint32_t>(bytes); };
    set(created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align(shape.align_a));
    set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align(shape.align_b));
    set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align(shape.align_d));
    set(created, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align(shape.align_d));
    // Split sums are added up in float32 and in a fixed order, or not at all.
    const std::uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(created, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  }
  cublasLtMatmulPreference_t get() const { return preference_.get(); }

 private:
  Owned<cublasLtMatmulPreferenceDestroy> preference_;
};

}  // namespace

const char* name(Product product) {
  constexpr const char* names[] = {"logits", "grad_hidden", "grad_weight"};
  return names[static_cast<int>(product)];
}

GemmDescription::GemmDescription(const GemmShape& shape) : shape_(shape) {
  const bool logits = shape.product == Product::logits;
  const bool weight = shape.product == Product::grad_weight;
  cublasLtMatmulDesc_t created = nullptr;
  SHARDLOSS_CUBLAS(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  description_.reset(created);
  set(description_.get(), CUBLASLT_MATMUL_DESC_TRANSA, logits ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description_.get(), CUBLASLT_MATMUL_DESC_TRANSB, weight ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description_.get(), CUBLASLT_MATMUL_DESC_POINTER_MODE,
      shape.scaled ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
  if (shape.multiprocessors > 0) count_on(shape.multiprocessors);
  if (shape.bias) {
    set(description_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(shape.output));
    // Heuristics look at the pointer's alignment, not behind it.
    set(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(256));
  }
  const DType input = shape.input;
  a_ = layout(input, logits ? shape.k : shape.m, logits ? shape.m : shape.k, shape.lda);
  b_ = layout(input, weight ? shape.n : shape.k, weight ? shape.k : shape.n, shape.ldb);
  d_ = layout(shape.output, shape.m, shape.n, shape.ldd);
}

void GemmDescription::count_on(int multiprocessors) {
  set(description_.get(), CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors);
}

std::vector<cublasLtMatmulAlgo_t> GemmDescription::candidates(cublasLtHandle_t handle,
                                                              std::size_t workspace_bytes, int most,
                                                              int multiprocessors) {
  const Preference preference(shape_, workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  if (multiprocessors != shape_.multiprocessors) count_on(multiprocessors);
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, description_.get(), a_.get(), b_.get(), d_.get(),
                                     d_.get(), preference.get(), most, found.data(), &count);
  if (multiprocessors != shape_.multiprocessors) count_on(shape_.multiprocessors);
  found.resize(static_cast<std::size_t>(count));
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const auto& one : found)
    if (one.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(one.algo);
  if (status != CUBLAS_STATUS_SUCCESS || algorithms.empty()) {
    throw Error(
        ErrorCode::device,
        "cublasLt has no algorithm for the " + std::string(name(shape_.product)) + " product " +
            std::to_string(shape_.m) + " x " + std::to_string(shape_.n) + " x " +
            std::to_string(shape_.k) + " of " + std::string(shardloss::name(shape_.input)) +
            " into " + std::string(shardloss::name(shape_.output)) + ": found " +
            std::to_string(count) + " (" + cublasLtGetStatusName(status) + "), wanted at least 1");
  }
  return algorithms;
}

bool GemmDescription::accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                              std::size_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, description_.get(), a_.get(), b_.get(), d_.get(), d_.get(),
                                 &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace_bytes;
}

void GemmDescription::enqueue(cublasLtHandle_t handle, const GemmOperands& on,
                              const float* device_constants, const cublasLtMatmulAlgo_t& algorithm,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  static constexpr float host_constants[] = {0.0f, 1.0f};
  const float* const constants = shape_.scaled ? device_constants : host_constants;
  const float* const alpha = shape_.scaled ? on.alpha : constants + 1;
  const float* const beta = constants + (on.accumulate ? 1 : 0);
  if (shape_.bias) set(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, on.bias);
  SHARDLOSS_CUBLAS(cublasLtMatmul(handle, description_.get(), alpha, on.a, a_.get(), on.b, b_.get(),
                                  beta, on.d, d_.get(), on.d, d_.get(), &algorithm, on.workspace,
                                  workspace_bytes, stream));
}

std::string GemmDescription::text(const cublasLtMatmulAlgo_t& algorithm) const {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(),
                "cublasLt algorithm %d tile %u stages %u cluster %u swizzle %u split %d",
                config_of<int>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
                config_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                config_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                config_of<std::uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) + 0U,
                config_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                config_of<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  std::string all = text.data();
  if (shape_.multiprocessors > 0)
    all += " on " + std::to_string(shape_.multiprocessors) + " multiprocessors";
  return all;
}

}  // namespace shardloss::detail::cuda
