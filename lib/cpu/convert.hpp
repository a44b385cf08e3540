/// \file
/// Storage and arithmetic types: 16-bit values become float to be computed with, and are rounded to
/// nearest even on their way back (overflow to infinity, NaN stays NaN). `Real` is float, or double
/// for float64 storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../call.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::detail::cpu {

/// n consecutive elements of `dtype` as Real.
void to_real(DType dtype, const void* in, std::int64_t n, float* out);
void to_real(DType dtype, const void* in, std::int64_t n, double* out);

/// n Real elements as `dtype`.
void from_real(const float* in, std::int64_t n, DType dtype, void* out);
void from_real(const double* in, std::int64_t n, DType dtype, void* out);

/// result = x, or result += x, in the result's dtype, rounded once.
template <class Real>
void store(const Real* x, std::int64_t n, bool accumulate, DType dtype, void* result);

/// The address of element `index` of an array of `dtype`.
inline const void* element(const void* base, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::ptrdiff_t>(size_of(dtype));
}
inline void* element(void* base, DType dtype, std::int64_t index) {
  return static_cast<std::byte*>(base) + index * static_cast<std::ptrdiff_t>(size_of(dtype));
}

/// A row-major matrix of any dtype, `ld` elements from row to row. `Void` is void or const void.
template <class Void>
struct StoredMatrix {
  Void* data;
  DType dtype;
  std::int64_t ld;

  Void* at(std::int64_t row, std::int64_t column) const {
    return element(data, dtype, row * ld + column);
  }
  StoredMatrix from(std::int64_t row, std::int64_t column) const {
    return {at(row, column), dtype, ld};
  }
};

template <bool Const>
auto stored(const BasicTensor<Const>& tensor) {
  using Void = std::remove_pointer_t<typename BasicTensor<Const>::Pointer>;
  return StoredMatrix<Void>{tensor.data(), tensor.dtype(), row_stride(tensor)};
}

}  // namespace shardloss::detail::cpu
