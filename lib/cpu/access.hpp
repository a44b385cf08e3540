/// \file
/// Reading and writing the callers' vectors and scalars, element by element, at any stride.
#pragma once

#include <cstdint>

#include "shardloss/tensor.hpp"

namespace shardloss::detail::cpu {

/// Element `index` of a scalar (always the one) or vector of T.
template <class T>
T read(const ConstTensor& tensor, std::int64_t index) {
  return static_cast<const T*>(tensor.data())[index * tensor.stride(0)];
}

/// The same where the tensor may be absent.
template <class T>
T read_or(const ConstTensor& tensor, std::int64_t index, T absent) {
  return tensor.given() ? read<T>(tensor, index) : absent;
}

/// Element `index` of a vector of int32 or int64.
inline std::int64_t read_id(const ConstTensor& tensor, std::int64_t index) {
  return tensor.dtype() == DType::int32 ? read<std::int32_t>(tensor, index)
                                        : read<std::int64_t>(tensor, index);
}

/// Writes element `index` of a vector or scalar of T, if the tensor is given.
template <class T>
void write(const Tensor& tensor, std::int64_t index, T value) {
  if (tensor.given()) static_cast<T*>(tensor.data())[index * tensor.stride(0)] = value;
}

}  // namespace shardloss::detail::cpu
