/// \file
/// A product as cublasLt is told of it: what its algorithms are asked for, checked and run with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gemm.hpp"

namespace shardloss::detail::cuda {

/// The name of a product in plans, messages and the cache.
const char* name(Product product);

/// A handle of cublasLt that `destroy` takes back.
template <auto destroy>
struct OwnedHandle;
template <class Opaque, cublasStatus_t (*destroy)(Opaque*)>
struct OwnedHandle<destroy> {
  struct Destroy {
    void operator()(Opaque* handle) const { destroy(handle); }
  };
  using type = std::unique_ptr<Opaque, Destroy>;
};
template <auto destroy>
using Owned = typename OwnedHandle<destroy>::type;

class GemmDescription {
 public:
  explicit GemmDescription(const GemmShape& shape);

  const GemmShape& shape() const noexcept { return shape_; }

  /// At most `most` algorithms that cublasLt expects to be fast on `multiprocessors` (0: all), its
  /// first choice first; at least one, or Error(device). They run on as many as the shape says.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                               int most, int multiprocessors);

  /// Whether cublasLt would run this algorithm here.
  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
               std::size_t workspace_bytes) const;

  /// Enqueues d (+)= alpha a b. `device_constants`: 0 and 1, for scalars that lie on the device.
  void enqueue(cublasLtHandle_t handle, const GemmOperands& on, const float* device_constants,
               const cublasLtMatmulAlgo_t& algorithm, std::size_t workspace_bytes,
               cudaStream_t stream);

  /// What the plan says of an algorithm: its configuration, and the multiprocessors.
  std::string text(const cublasLtMatmulAlgo_t& algorithm) const;

 private:
  void count_on(int multiprocessors);

  GemmShape shape_;
  Owned<cublasLtMatmulDescDestroy> description_;
  Owned<cublasLtMatrixLayoutDestroy> a_, b_, d_;
};

/// An attribute of an algorithm's configuration.
template <class T>
T config_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
  return value;
}

}  // namespace shardloss::detail::cuda
