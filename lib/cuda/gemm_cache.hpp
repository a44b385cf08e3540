/// \file
/// Algorithms that were timed, kept for the process and, where SHARDLOSS_GEMM_CACHE names a file,
/// beyond it.
#pragma once

#include <optional>
#include <string>

#include "gemm.hpp"

namespace shardloss::detail::cuda {

/// What is kept of a timed algorithm.
struct CachedAlgorithm {
  cublasLtMatmulAlgo_t algorithm{};
  std::string text;  ///< its configuration and time
};

/// The algorithm kept for `key`, from this process or from the file. An unreadable file is
/// Error(invalid_argument).
std::optional<CachedAlgorithm> find_cached(const std::string& key);

/// Keeps an algorithm; adds it to the file, whose other entries stay.
void keep_cached(const std::string& key, const CachedAlgorithm& algorithm);

}  // namespace shardloss::detail::cuda
