#include "host_array.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "convert.hpp"

namespace shardloss::launch {

HostArray::HostArray(DType dtype, std::vector<std::int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), row_stride_(columns()) {
  // From calloc, so that large arrays cost memory only where they are touched.
  owned_ = std::calloc(std::max<std::size_t>(bytes(), 1), 1);
  if (owned_ == nullptr) throw std::bad_alloc();
  owner_ = std::shared_ptr<const void>(
      owned_, [](const void* memory) { std::free(const_cast<void*>(memory)); });
  data_ = owned_;
}

HostArray::HostArray(DType dtype, std::vector<std::int64_t> shape, std::int64_t row_stride,
                     const void* data, std::shared_ptr<const void> owner)
    : dtype_(dtype),
      shape_(std::move(shape)),
      row_stride_(row_stride),
      data_(data),
      owner_(std::move(owner)) {}

ConstTensor HostArray::view() const {
  if (!given()) return {};
  if (shape_.empty()) return ConstTensor(data_, dtype_);
  if (shape_.size() == 1) return ConstTensor(data_, dtype_, shape_[0], 1);
  return ConstTensor(data_, dtype_, {shape_[0], shape_[1]}, {row_stride_, 1});
}

Tensor HostArray::mutable_view() {
  if (!given()) return {};
  if (shape_.empty()) return Tensor(owned_, dtype_);
  if (shape_.size() == 1) return Tensor(owned_, dtype_, shape_[0], 1);
  return Tensor(owned_, dtype_, {shape_[0], shape_[1]}, {row_stride_, 1});
}

void HostArray::poison() {
  if (owned_ != nullptr) std::memset(owned_, 0xff, bytes());
}

std::vector<double> HostArray::doubles() const {
  std::vector<double> out(given() ? static_cast<std::size_t>(elements()) : 0);
  const auto* from = static_cast<const std::byte*>(data_);
  if (given() && row_stride_ == columns()) {
    convert(from, dtype_, out.data(), DType::float64, elements());
    return out;
  }
  for (std::int64_t i = 0; given() && i < rows(); ++i)
    convert(from + i * row_stride_ * static_cast<std::int64_t>(size_of(dtype_)), dtype_,
            out.data() + i * columns(), DType::float64, columns());
  return out;
}

std::vector<std::int64_t> HostArray::integers() const {
  std::vector<std::int64_t> out(given() ? static_cast<std::size_t>(elements()) : 0);
  if (given()) convert(data_, dtype_, out.data(), DType::int64, elements());
  return out;
}

}  // namespace shardloss::launch
