/// \file
/// Timing decides which algorithm a product runs.
#pragma once

#include "gemm_description.hpp"

namespace shardloss::detail::cuda {

/// Named in the keys of the cache: what an older scheme chose is chosen again.
inline constexpr const char* tuning_scheme = "bursts over orders of tiles";

/// The fastest algorithm for a product, timed on random numbers in temporary buffers of the
/// current device. Blocks for some seconds. Error(device) where none runs.
///
/// Timed are cublasLt's own candidates, those that it has for half of the multiprocessors, and of
/// both the variants that go through the tiles of the result in another order (clusters, swizzle).
/// Order decides how often an operand is read from memory, and so what power is left to the clock:
/// dW of 2048 x 4096 x 128256 took 3.53 ms by the best of cublasLt's own, and 3.27 by a variant. A
/// variant counts only where it gives the same bits as the candidate that it comes from; one whose
/// kernel faults takes the context with it, so nothing is tried that cublasLt does not accept.
GemmAlgorithm tune(cublasLtHandle_t handle, GemmDescription& description,
                   const float* device_constants, std::size_t workspace_bytes);

}  // namespace shardloss::detail::cuda
