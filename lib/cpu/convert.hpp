/// \file
/// Storage and arithmetic types: 16-bit values become float to be computed with, and are rounded to
/// nearest even on their way back (overflow to infinity, NaN stays NaN). `Real` is float, or double
/// for float64 storage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shardloss/tensor.hpp"

namespace shardloss::detail::cpu {

/// n consecutive elements of `dtype` as Real.
void to_real(DType dtype, const void* in, std::int64_t n, float* out);
void to_real(DType dtype, const void* in, std::int64_t n, double* out);

/// n Real elements as `dtype`.
void from_real(const float* in, std::int64_t n, DType dtype, void* out);
void from_real(const double* in, std::int64_t n, DType dtype, void* out);

/// The address of element `index` of an array of `dtype`.
inline const void* element(const void* base, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(base) +
         index * static_cast<std::ptrdiff_t>(size_of(dtype));
}
inline void* element(void* base, DType dtype, std::int64_t index) {
  return static_cast<std::byte*>(base) + index * static_cast<std::ptrdiff_t>(size_of(dtype));
}

}  // namespace shardloss::detail::cpu
