/// \file
/// Element types, devices, streams and non-owning tensor views.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "shardloss/export.hpp"

namespace shardloss {

/// Element types. Floating-point ones carry the computation, integers targets and indices.
enum class DType : std::uint8_t { float64, float32, bfloat16, float16, int64, int32, uint8 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float64:
    case DType::int64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::bfloat16:
    case DType::float16: return 2;
    case DType::uint8: return 1;
  }
  return 0;
}

/// "float32", "bfloat16", ...
SHARDLOSS_API std::string_view name(DType dtype) noexcept;

/// True for float64, float32, bfloat16 and float16.
constexpr bool is_floating(DType dtype) noexcept { return dtype <= DType::float16; }

/// Storage of a bfloat16 value (the upper half of a float32). Arithmetic is the backends' affair.
struct bfloat16 {
  std::uint16_t bits;  ///< sign, 8 exponent and 7 fraction bits
};

/// Storage of an IEEE 754 binary16 value.
struct float16 {
  std::uint16_t bits;  ///< sign, 5 exponent and 10 fraction bits
};

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of() noexcept {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, double>)
    return DType::float64;
  else if constexpr (std::is_same_v<U, float>)
    return DType::float32;
  else if constexpr (std::is_same_v<U, bfloat16>)
    return DType::bfloat16;
  else if constexpr (std::is_same_v<U, float16>)
    return DType::float16;
  else if constexpr (std::is_same_v<U, std::uint8_t>)
    return DType::uint8;
  else if constexpr (std::is_integral_v<U> && std::is_signed_v<U> && sizeof(U) == 8)
    return DType::int64;
  else if constexpr (std::is_integral_v<U> && std::is_signed_v<U> && sizeof(U) == 4)
    return DType::int32;
  else
    static_assert(sizeof(U) == 0, "no DType for this element type");
}

/// The kinds of device that tensors live on.
enum class DeviceKind : std::uint8_t { cpu, cuda };

/// "cpu" or "cuda".
SHARDLOSS_API std::string_view name(DeviceKind kind) noexcept;

/// Where memory lives. `index` is the CUDA device ordinal, 0 on the CPU.
struct Device {
  DeviceKind kind = DeviceKind::cpu;               ///< CPU or GPU memory
  int index = 0;                                   ///< which GPU
  bool operator==(const Device&) const = default;  ///< the same memory
};

/// A cudaStream_t, or nothing on the CPU. The default stream (null) is refused on CUDA: it would
/// order the caller's other streams behind every pass.
struct Stream {
  void* handle = nullptr;  ///< the cudaStream_t; the caller's
};

/// A non-owning view of a scalar, vector or matrix; strides count elements, any value is allowed
/// where the callee does not say otherwise (0 expands a scalar). A default-constructed view is
/// *not given*: that output is not computed, that input is absent.
template <bool Const>
class BasicTensor {
 public:
  /// To memory that a ConstTensor only reads.
  using Pointer = std::conditional_t<Const, const void*, void*>;

  BasicTensor() = default;

  /// A scalar.
  BasicTensor(Pointer data, DType dtype, Device device = {})
      : data_(data), dtype_(dtype), device_(device), dims_(0), given_(true) {}

  /// A vector [size].
  BasicTensor(Pointer data, DType dtype, std::int64_t size, std::int64_t stride, Device device = {})
      : data_(data),
        dtype_(dtype),
        device_(device),
        dims_(1),
        given_(true),
        sizes_{size, 1},
        strides_{stride, 0} {}

  /// A matrix [rows, columns].
  BasicTensor(Pointer data, DType dtype, std::array<std::int64_t, 2> sizes,
              std::array<std::int64_t, 2> strides, Device device = {})
      : data_(data),
        dtype_(dtype),
        device_(device),
        dims_(2),
        given_(true),
        sizes_(sizes),
        strides_(strides) {}

  /// A mutable view serves as a constant one.
  template <bool Other>
  requires(Const && !Other)
      BasicTensor(const BasicTensor<Other>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()),
        dtype_(other.dtype()),
        device_(other.device()),
        dims_(other.dims()),
        given_(other.given()),
        sizes_{other.size(0), other.size(1)},
        strides_{other.stride(0), other.stride(1)} {}

  /// False for a default-constructed view.
  bool given() const noexcept { return given_; }
  /// As given().
  explicit operator bool() const noexcept { return given_; }
  /// The first element; may be null where there are no elements.
  Pointer data() const noexcept { return data_; }
  /// Of the elements.
  DType dtype() const noexcept { return dtype_; }
  /// Where data() lies.
  Device device() const noexcept { return device_; }
  /// 0 for a scalar, 1 for a vector, 2 for a matrix.
  int dims() const noexcept { return dims_; }
  /// Size along `dim`; 1 past the last dimension.
  std::int64_t size(int dim) const noexcept { return sizes_[static_cast<std::size_t>(dim)]; }
  /// Stride along `dim`, in elements.
  std::int64_t stride(int dim) const noexcept { return strides_[static_cast<std::size_t>(dim)]; }

 private:
  Pointer data_ = nullptr;
  DType dtype_ = DType::float32;
  Device device_{};
  int dims_ = 0;
  bool given_ = false;
  std::array<std::int64_t, 2> sizes_{1, 1};
  std::array<std::int64_t, 2> strides_{0, 0};
};

/// A view through which results are written.
using Tensor = BasicTensor<false>;
/// A view that is only read.
using ConstTensor = BasicTensor<true>;

/// A view of one value.
template <class T>
auto scalar(T* data, Device device = {}) {
  return BasicTensor<std::is_const_v<T>>(data, dtype_of<T>(), device);
}

/// A view of a contiguous vector [size].
template <class T>
auto vector(T* data, std::int64_t size, Device device = {}) {
  return BasicTensor<std::is_const_v<T>>(data, dtype_of<T>(), size, 1, device);
}

/// A view of a row-major matrix [rows, columns]; `row_stride` elements lie between two rows.
template <class T>
auto matrix(T* data, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
            Device device = {}) {
  return BasicTensor<std::is_const_v<T>>(data, dtype_of<T>(), {rows, columns}, {row_stride, 1},
                                         device);
}

/// A view of a dense row-major matrix [rows, columns].
template <class T>
auto matrix(T* data, std::int64_t rows, std::int64_t columns, Device device = {}) {
  return matrix(data, rows, columns, columns, device);
}

/// "float32 [8, 16] strides [16, 1] on cpu", for messages.
SHARDLOSS_API std::string to_string(const ConstTensor& tensor);

}  // namespace shardloss
