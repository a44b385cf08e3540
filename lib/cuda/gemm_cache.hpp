/// \file
/// Algorithms that were timed, kept for the process and, where SHARDLOSS_GEMM_CACHE names a file,
/// beyond it.
#pragma once

#include <optional>
#include <string>

#include "gemm.hpp"

namespace shardloss::detail::cuda {

/// The algorithm kept for `key`, from this process or from the file. An unreadable file is
/// Error(invalid_argument).
std::optional<GemmAlgorithm> find_cached(const std::string& key);

/// Keeps an algorithm; adds it to the file, whose other entries stay.
void keep_cached(const std::string& key, const GemmAlgorithm& algorithm);

}  // namespace shardloss::detail::cuda
