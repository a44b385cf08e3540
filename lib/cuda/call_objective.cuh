/// \file
/// The objective of a call, as kernels that combine rows are told it.
#pragma once

#include "device.cuh"

namespace shardloss::detail::cuda {

__device__ inline CallObjective<float> call_objective(const CombineArguments& c,
                                                      const PassScalars& scalars) {
  return {c.objective, c.class_weights, scalars.class_sum, scalars.class_most,
          c.reduced ? scalars.factor : 1.0};
}

}  // namespace shardloss::detail::cuda
