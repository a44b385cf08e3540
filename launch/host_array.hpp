/// \file
/// Host arrays that may own their memory or stand for part of a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shardloss/tensor.hpp"

namespace shardloss::launch {

/// A scalar, vector or matrix in host memory. Copies share the memory. Default-constructed: not
/// given.
class HostArray {
 public:
  HostArray() = default;

  /// Owned, zeroed memory; 0, 1 or 2 sizes.
  HostArray(DType dtype, std::vector<std::int64_t> shape);

  /// Part of memory that `owner` keeps alive.
  HostArray(DType dtype, std::vector<std::int64_t> shape, std::int64_t row_stride, const void* data,
            std::shared_ptr<const void> owner);

  bool given() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t rows() const { return shape_.empty() ? 1 : shape_[0]; }
  std::int64_t columns() const { return shape_.size() < 2 ? 1 : shape_[1]; }
  std::int64_t row_stride() const { return row_stride_; }
  std::int64_t elements() const { return rows() * columns(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
  const void* data() const { return data_; }
  /// Owned memory only.
  void* mutable_data() { return owned_; }

  /// A view for the library; not given where this is not.
  ConstTensor view() const;
  /// Owned memory only.
  Tensor mutable_view();

  /// Every byte 0xFF: NaN in every floating dtype, -1 or 255 in integers. What is left after a call
  /// was not written.
  void poison();

  std::vector<double> doubles() const;
  std::vector<std::int64_t> integers() const;

 private:
  DType dtype_ = DType::float32;
  std::vector<std::int64_t> shape_;
  std::int64_t row_stride_ = 1;
  const void* data_ = nullptr;
  void* owned_ = nullptr;
  std::shared_ptr<const void> owner_;
};

}  // namespace shardloss::launch
