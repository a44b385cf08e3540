/// \file
/// The three matrix products of a pass alone on a GPU: what the CUDA pass is measured against. They
/// are the fastest of cublasLt's own candidates. The library also tries those in other orders, and
/// may multiply faster.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device_memory.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::launch {

/// Sizes of one rank's pass: N rows, D hidden, V columns of the shard, C rows of a chunk.
struct FloorShape {
  std::int64_t rows = 0, hidden = 0, vocab = 0, chunk_rows = 0;
  DType dtype = DType::bfloat16;       ///< of hidden, weight and logits
  DType logits = DType::bfloat16;      ///< that the products write and read
  DType grad_hidden = DType::float32;  ///< what the hidden product writes
  DType grad_weight = DType::float32;  ///< what the weight product adds up in
};

/// One product of row-major matrices through cublasLt: d = a b + beta d; dW: 1e-6 a b + beta d.
class LtProduct {
 public:
  /// Which of the three, and its rows.
  enum class Kind : std::uint8_t { logits, grad_hidden, grad_weight };

  LtProduct(cublasLtHandle_t handle, Kind kind, const FloorShape& shape, std::int64_t rows);
  ~LtProduct();
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  /// Times the candidates of the heuristic on these operands, run as in a pass, and keeps the
  /// fastest; for all that follow of the same sizes in this process too. Returns how many ran.
  int tune(const void* a, const void* b, void* d, float beta, const DeviceMemory& workspace,
           cudaStream_t stream);
  /// What was kept: its number among the candidates, its tile and cluster, its time.
  const std::string& choice() const { return choice_; }
  void run(const void* a, const void* b, void* d, float beta, const DeviceMemory& workspace,
           cudaStream_t stream);

 private:
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  std::string sizes_, choice_;
  float alpha_ = 1;
};

/// All products of a pass at one chunk size, in buffers of its own.
class GpuFloor {
 public:
  /// `hidden` [N, D] and `weight` [V, D] on the device, dense, in shape.dtype.
  GpuFloor(const FloorShape& shape, const void* hidden, const void* weight, cudaStream_t stream);
  ~GpuFloor();
  GpuFloor(const GpuFloor&) = delete;
  GpuFloor& operator=(const GpuFloor&) = delete;

  /// Enqueues them.
  void run();
  cudaStream_t stream() const { return stream_; }
  double flops() const;
  int candidates() const { return candidates_; }  ///< the fewest that a product had to choose from
  /// What the three products of a chunk run.
  std::vector<std::string> choices() const;

 private:
  struct Trio;
  void run_chunk(Trio& trio, std::int64_t first);

  FloorShape shape_;
  const void* hidden_;
  const void* weight_;
  cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory logits_, grad_hidden_, grad_weight_, workspace_;
  std::unique_ptr<Trio> full_, tail_;  ///< tail_: of the last chunk, where it is shorter
  int candidates_ = 0;
};

}  // namespace shardloss::launch
