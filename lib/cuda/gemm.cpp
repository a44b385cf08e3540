// The products of one device: which algorithm each shape runs.
#include "gemm.hpp"

#include <array>

#include "gemm_cache.hpp"
#include "gemm_description.hpp"
#include "gemm_tuning.hpp"

namespace shardloss::detail::cuda {

int alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (int bytes = most_alignment; bytes > 1; bytes /= 2)
    if (address % static_cast<std::uintptr_t>(bytes) == 0) return bytes;
  return 1;
}

struct Gemms::Prepared {
  explicit Prepared(const GemmShape& shape) : description(shape) {}
  GemmDescription description;
  GemmAlgorithm chosen;
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
  return card_ + ", cublasLt" + text(cublasLtGetVersion()) + ", " + name(s.product) + ", m n k" +
         text(s.m, s.n, s.k) + ", ld" + text(s.lda, s.ldb, s.ldd) + ", " +
         std::string(shardloss::name(s.input)) + " to " + std::string(shardloss::name(s.output)) +
         (s.bias ? " with bias" : "") + (s.scaled ? " scaled" : "") +
         (s.multiprocessors > 0 ? ", multiprocessors" + text(s.multiprocessors) : "") +
         ", aligned" + text(s.align_a, s.align_b, s.align_d) + ", workspace" +
         text(workspace_bytes_) + ", by " + tuning_scheme;
}

std::string Gemms::prepare(const GemmShape& shape) {
  const std::lock_guard lock(mutex_);
  return find(shape, [&](GemmDescription& description) { return choose(description); }).chosen.text;
}

void Gemms::run(const GemmShape& shape, const GemmOperands& operands, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  // Not from the cache: what others have timed since must not change what this object runs.
  Prepared& prepared =
      find(shape, [&](GemmDescription& description) { return first(description); });
  prepared.description.enqueue(handle_.get(), operands, constants_.as<float>(),
                               prepared.chosen.algorithm, workspace_bytes_, stream);
}

template <class Choose>
Gemms::Prepared& Gemms::find(const GemmShape& shape, Choose choose) {
  const auto known = prepared_.find(shape);
  if (known != prepared_.end()) return known->second;
  Prepared& prepared = prepared_.try_emplace(shape, shape).first->second;
  try {
    prepared.chosen = choose(prepared.description);
  } catch (...) {
    prepared_.erase(shape);
    throw;
  }
  return prepared;
}

GemmAlgorithm Gemms::choose(GemmDescription& description) {
  const std::string key = key_of(description.shape());
  const auto cached = find_cached(key);
  if (cached && description.accepts(handle_.get(), cached->algorithm, workspace_bytes_))
    return *cached;
  if (choice_ != GemmChoice::tuned) return first(description);
  GemmAlgorithm fastest =
      tune(handle_.get(), description, constants_.as<float>(), workspace_bytes_);
  keep_cached(key, fastest);
  return fastest;
}

GemmAlgorithm Gemms::first(GemmDescription& description) {
  const auto algorithm =
      description
          .candidates(handle_.get(), workspace_bytes_, 1, description.shape().multiprocessors)
          .front();
  return {algorithm, description.text(algorithm) + ", cublasLt's first"};
}

}  // namespace shardloss::detail::cuda
