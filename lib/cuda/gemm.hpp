/// \file
/// The three products of a chunk through cublasLt, and how their algorithms are chosen.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "resources.hpp"
#include "shardloss/problem.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::detail::cuda {

/// cublasLt counts column by column, so each row-major product is handed over transposed:
///   logits       U  [C, V] = X W^T    as  U^T  [V, C] = W X^T       a = W, b = X
///   grad_hidden  dX [C, D] = dU W     as  dX^T [D, C] = W^T dU^T    a = W, b = dU
///   grad_weight  dW [V, D] = dU^T X   as  dW^T [D, V] = X^T dU      a = X, b = dU
enum class Product : std::uint8_t { logits, grad_hidden, grad_weight };

/// What allocations have, and where heuristics stop looking: with 16 bytes, enough for every
/// kernel, they ranked slower algorithms first (dW of 2048 x 2048 x 151552: 2.8 ms against 2.0).
inline constexpr int most_alignment = 256;

/// A product as far as the choice of its algorithm goes: m x n results of k terms, column-major;
/// leading dimensions in elements, alignments of the pointers in bytes.
struct GemmShape {
  Product product = Product::logits;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  DType input = DType::float32;
  DType output = DType::float32;
  bool bias = false;        ///< logits: [V] of the output's dtype, 16-byte aligned
  bool scaled = false;      ///< alpha lies on the device; otherwise it is 1
  int multiprocessors = 0;  ///< that it may count on; 0: all
  int align_a = most_alignment, align_b = most_alignment, align_d = most_alignment;
  auto operator<=>(const GemmShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// Where a product finds what it multiplies, and whether it adds to d. Scalars that the host knows
/// let cublasLt take kernels that add while they store: with both on the device, dW of 2048 x 4096
/// x 128256 took 3.43 ms, and 3.23 so.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  const float* alpha = nullptr;  ///< device memory, where GemmShape::scaled
  bool accumulate = false;
  void* workspace = nullptr;
};

/// The alignment of a pointer in GemmShape's terms.
int alignment_of(const void* pointer);

/// An algorithm, and what the plan says about it.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t algorithm{};
  std::string text;
};

class GemmDescription;

/// Products of one device with a fixed choice of algorithms: equal shapes run the same one.
class Gemms {
 public:
  /// Of the current device.
  Gemms(GemmChoice choice, std::size_t workspace_bytes);
  ~Gemms();
  Gemms(const Gemms&) = delete;
  Gemms& operator=(const Gemms&) = delete;

  /// Chooses the shape's algorithm: from the cache, by timing where asked for, or cublasLt's first.
  /// Returns its description.
  std::string prepare(const GemmShape& shape);

  /// Enqueues d (+)= alpha a b; logits: d = a b (+ bias). A shape that was not prepared runs
  /// cublasLt's first algorithm.
  void run(const GemmShape& shape, const GemmOperands& operands, cudaStream_t stream);

 private:
  struct Prepared;
  template <class Choose>
  Prepared& find(const GemmShape& shape, Choose choose);
  GemmAlgorithm choose(GemmDescription& description);
  GemmAlgorithm first(GemmDescription& description);
  std::string key_of(const GemmShape& shape) const;

  LtHandle handle_;
  DeviceBuffer constants_;  // 0, 1
  GemmChoice choice_;
  std::size_t workspace_bytes_;
  std::string card_;
  std::mutex mutex_;  // guards prepared_ and the descriptions in it
  std::map<GemmShape, Prepared> prepared_;
};

}  // namespace shardloss::detail::cuda
