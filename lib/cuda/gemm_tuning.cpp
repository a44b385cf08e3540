#include "gemm_tuning.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contest.hpp"
#include "kernels.hpp"

namespace shardloss::detail::cuda {
namespace {

constexpr int most_candidates = 16;

// cublasLt documents swizzles 0 and 1 and reserves the rest. Its kernels for compute capability 9
// take 2 to 4 as widths of a band of tiles, as measurements on H200s have it: nowhere else are they
// tried.
std::vector<std::uint32_t> swizzles(int compute_capability) {
  if (compute_capability == 9) return {0, 1, 2, 3, 4};
  return {0, 1};
}

constexpr std::uint16_t clusters[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                      CUBLASLT_CLUSTER_SHAPE_1x2x1};

struct Candidate {
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t origin = 0;  ///< the candidate that it is a variant of; itself where it is none
  bool own = false;        ///< cublasLt's own for this product
};

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  SHARDLOSS_CUDA(cudaGetDevice(&device));
  SHARDLOSS_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// What tells two algorithms apart.
std::array<std::int64_t, 9> configuration(const cublasLtMatmulAlgo_t& a) {
  return {config_of<std::int32_t>(a, CUBLASLT_ALGO_CONFIG_ID),
          config_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
          config_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_STAGES_ID),
          config_of<std::int32_t>(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          config_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
          config_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
          config_of<std::uint16_t>(a, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
          config_of<std::uint16_t>(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
          config_of<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING)};
}

// Memory for one product, its operands filled, and what runs it there.
class Trial {
 public:
  Trial(cublasLtHandle_t handle, GemmDescription& description, const float* device_constants,
        std::size_t workspace_bytes)
      : handle_(handle),
        description_(description),
        shape_(description.shape()),
        constants_(device_constants),
        workspace_bytes_(workspace_bytes),
        workspace_(workspace_bytes),
        checksum_(sizeof(std::uint64_t)) {
    const bool logits = shape_.product == Product::logits;
    const bool weight = shape_.product == Product::grad_weight;
    a_ = memory(logits ? shape_.m : shape_.k, shape_.lda, shape_.input);
    b_ = memory(weight ? shape_.k : shape_.n, shape_.ldb, shape_.input);
    d_ = memory(shape_.n, shape_.ldd, shape_.output);
    if (shape_.bias) bias_ = memory(1, shape_.m, shape_.output);
    fill(a_, shape_.input, 1.0f, 1);
    fill(b_, shape_.input, 0.05f, 2);
    fill(bias_, shape_.output, 1.0f, 4);
  }

  cudaStream_t stream() const { return stream_.get(); }

  void enqueue(const cublasLtMatmulAlgo_t& algorithm, bool accumulate) {
    const GemmOperands on{a_.as(),        b_.as(),    d_.as(),        bias_.as(),
                          constants_ + 1, accumulate, workspace_.as()};
    description_.enqueue(handle_, on, constants_, algorithm, workspace_bytes_, stream_.get());
  }

  /// As in all chunks but the first.
  void enqueue(const cublasLtMatmulAlgo_t& algorithm) {
    enqueue(algorithm, shape_.product == Product::grad_weight);
  }

  /// Checksums of what the product makes of the same d, overwritten and, where it is a gradient,
  /// added to; nothing where the algorithm does not run.
  std::optional<std::array<std::uint64_t, 2>> bits(const cublasLtMatmulAlgo_t& algorithm) {
    std::array<std::uint64_t, 2> sums{};
    for (const bool accumulate : {false, true}) {
      if (accumulate && shape_.product == Product::logits) break;
      fill(d_, shape_.output, 1.0f, 3);
      try {
        enqueue(algorithm, accumulate);
      } catch (const Error&) {
        cudaGetLastError();  // a launch that was refused is not for the next one to report
        return std::nullopt;
      }
      checksum(d_.as(), d_.bytes(), checksum_.as<std::uint64_t>(), stream_.get());
      SHARDLOSS_CUDA(cudaMemcpyAsync(&sums[accumulate ? 1 : 0], checksum_.as(), sizeof sums[0],
                                     cudaMemcpyDeviceToHost, stream_.get()));
      SHARDLOSS_CUDA(cudaStreamSynchronize(stream_.get()));
    }
    return sums;
  }

 private:
  // Of a column-major matrix.
  static DeviceBuffer memory(std::int64_t columns, std::int64_t ld, DType dtype) {
    return DeviceBuffer(static_cast<std::size_t>(columns * ld) * size_of(dtype));
  }

  void fill(DeviceBuffer& buffer, DType dtype, float deviation, std::uint64_t seed) {
    fill_random(buffer.as<void>(), dtype,
                static_cast<std::int64_t>(buffer.bytes() / size_of(dtype)), deviation, seed,
                stream_.get());
  }

  cublasLtHandle_t handle_;
  GemmDescription& description_;
  const GemmShape& shape_;
  const float* constants_;
  std::size_t workspace_bytes_;
  OwnedStream stream_;
  DeviceBuffer a_, b_, d_, bias_, workspace_, checksum_;
};

// cublasLt's own, and behind them what else is tried.
std::vector<Candidate> candidates_of(cublasLtHandle_t handle, GemmDescription& description,
                                     std::size_t workspace_bytes) {
  std::vector<Candidate> all;
  std::set<std::array<std::int64_t, 9>> seen;
  for (const auto& algorithm : description.candidates(handle, workspace_bytes, most_candidates,
                                                      description.shape().multiprocessors)) {
    seen.insert(configuration(algorithm));
    all.push_back({algorithm, all.size(), true});
  }
  const auto add = [&](const cublasLtMatmulAlgo_t& algorithm, std::size_t origin) {
    if (description.accepts(handle, algorithm, workspace_bytes) &&
        seen.insert(configuration(algorithm)).second)
      all.push_back({algorithm, origin, false});
  };
  try {
    for (const auto& algorithm :
         description.candidates(handle, workspace_bytes, most_candidates,
                                device_attribute(cudaDevAttrMultiProcessorCount) / 2))
      add(algorithm, all.size());
  } catch (const Error&) {
    // It has none for half of them.
  }

  const auto bands = swizzles(device_attribute(cudaDevAttrComputeCapabilityMajor));
  for (std::size_t origin = 0, count = all.size(); origin < count; ++origin) {
    cublasLtMatmulAlgo_t variant = all[origin].algorithm;
    const auto add_swizzles = [&] {
      for (const std::uint32_t swizzle : bands) {
        if (cublasLtMatmulAlgoConfigSetAttribute(&variant, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                                                 &swizzle, sizeof swizzle) == CUBLAS_STATUS_SUCCESS)
          add(variant, origin);
      }
    };
    add_swizzles();
    for (const std::uint16_t cluster : clusters) {
      if (cublasLtMatmulAlgoConfigSetAttribute(&variant, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                               &cluster, sizeof cluster) == CUBLAS_STATUS_SUCCESS)
        add_swizzles();
    }
  }
  return all;
}

// Those that run, and whose bits are their origin's.
std::vector<Candidate> trusted(Trial& trial, const std::vector<Candidate>& candidates) {
  std::vector<std::optional<std::array<std::uint64_t, 2>>> bits;
  std::vector<Candidate> kept;
  for (const Candidate& one : candidates) {
    bits.push_back(trial.bits(one.algorithm));
    if (bits.back() && bits.back() == bits[one.origin]) kept.push_back(one);
  }
  return kept;
}

}  // namespace

GemmAlgorithm tune(cublasLtHandle_t handle, GemmDescription& description,
                   const float* device_constants, std::size_t workspace_bytes) {
  const std::vector<Candidate> all = candidates_of(handle, description, workspace_bytes);
  Trial trial(handle, description, device_constants, workspace_bytes);
  const std::vector<Candidate> runs = trusted(trial, all);
  if (runs.empty()) {
    throw Error(ErrorCode::device, "none of " + std::to_string(all.size()) +
                                       " algorithms of cublasLt for the " +
                                       name(description.shape().product) + " product runs");
  }
  const auto own = std::count_if(runs.begin(), runs.end(), [](const auto& one) { return one.own; });
  const ContestResult result = contest(
      static_cast<std::size_t>(own), runs.size(),
      [&](std::size_t i) { trial.enqueue(runs[i].algorithm); }, trial.stream());
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), ", fastest of %zu, timed %.3f ms, the first %.3f ms",
                runs.size(), static_cast<double>(result.winner_ms),
                static_cast<double>(result.first_ms));
  const cublasLtMatmulAlgo_t& winner = runs[result.winner].algorithm;
  return {winner, description.text(winner) + text.data()};
}

}  // namespace shardloss::detail::cuda
