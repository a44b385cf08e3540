// What a tensor of a call may be, and whether two of them meet.
#include "checker.hpp"

#include <cstdlib>
#include <limits>

namespace shardloss::detail {
namespace {

std::string stride_text(const ConstTensor& t) {
  return "strides [" + std::to_string(t.stride(0)) + ", " + std::to_string(t.stride(1)) + "]";
}

std::string to_text(const Wanted& wanted) {
  std::string text;
  for (const DType dtype : wanted.dtypes)
    text += (text.empty() ? "" : " or ") + std::string(name(dtype));
  if (wanted.dims == 0) return text + " scalar";
  text += " [" + std::to_string(wanted.rows);
  if (wanted.dims == 2) text += ", " + std::to_string(wanted.columns);
  return text + "]";
}

}  // namespace

void Checker::check(const char* label, const ConstTensor& t, const Wanted& wanted) const {
  bool fits = t.dims() == wanted.dims;
  if (fits && wanted.dims >= 1) fits = t.size(0) == wanted.rows;
  if (fits && wanted.dims == 2) fits = t.size(1) == wanted.columns;
  bool known = false;
  for (const DType dtype : wanted.dtypes) known = known || t.dtype() == dtype;
  for (int i = 0; i < wanted.dims; ++i) fits = fits && t.size(i) >= 0;
  SHARDLOSS_REQUIRE(t.given() && fits && known,
                    std::string(label) + ": found " + to_string(t) + ", wanted " + to_text(wanted));
  SHARDLOSS_REQUIRE(t.device() == device_,
                    std::string(label) + ": found " + to_string(t) + ", the loss runs on " +
                        std::string(name(device_.kind)) + ":" + std::to_string(device_.index));
  const bool empty = wanted.dims >= 1 && (wanted.rows == 0 || wanted.columns == 0);
  SHARDLOSS_REQUIRE(empty || t.data() != nullptr,
                    std::string(label) + ": null data in " + to_string(t));
}

void Checker::check_matrix(const char* label, const ConstTensor& t, const Wanted& wanted) const {
  check(label, t, wanted);
  SHARDLOSS_REQUIRE(wanted.columns <= 1 || t.stride(1) == 1,
                    std::string(label) + ": " + stride_text(t) + ", wanted a column stride of 1");
  SHARDLOSS_REQUIRE(wanted.rows <= 1 || t.stride(0) >= wanted.columns,
                    std::string(label) + ": " + stride_text(t) +
                        ", wanted a row stride of at least " + std::to_string(wanted.columns));
  // That of the BLAS is an int.
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  SHARDLOSS_REQUIRE(wanted.rows <= 1 || !on_host() || t.stride(0) <= most,
                    std::string(label) + ": " + stride_text(t) +
                        ", wanted a row stride of at most " + std::to_string(most) + " on the CPU");
}

void Checker::check_dense(const char* label, const ConstTensor& t, const Wanted& wanted) const {
  check(label, t, wanted);
  SHARDLOSS_REQUIRE(wanted.rows <= 1 || t.stride(0) == 1,
                    std::string(label) + ": stride " + std::to_string(t.stride(0)) + ", wanted 1");
}

bool Checker::announced(const char* label, const ConstTensor& t, bool option) const {
  SHARDLOSS_REQUIRE(t.given() == option,
                    std::string(label) + (option ? ": not given, but the problem has it"
                                                 : ": given, but the problem has none"));
  return option;
}

Checker::Range Checker::range_of(const char* label, const ConstTensor& t, bool written) {
  const auto each = static_cast<std::int64_t>(size_of(t.dtype()));
  const std::int64_t width = t.dims() == 2 ? t.size(1) * each : each;
  const std::int64_t stride = t.dims() == 0 ? width : std::abs(t.stride(0)) * each;
  const std::int64_t runs = t.dims() == 0 ? 1 : t.size(0);
  auto begin = reinterpret_cast<std::uintptr_t>(t.data());
  const auto reach = static_cast<std::uintptr_t>((runs - 1) * stride);
  if (t.dims() != 0 && t.stride(0) < 0) begin -= reach;
  return {label, written, begin, begin + reach + static_cast<std::uintptr_t>(width), stride, width};
}

bool Checker::overlap(const Range& a, const Range& b) {
  if (a.begin >= b.end || b.begin >= a.end) return false;
  if (a.stride != b.stride || a.stride < a.width || a.stride < b.width) return true;
  // Same stride: interleaved columns of one matrix do not meet.
  const auto stride = static_cast<std::uintptr_t>(a.stride);
  const std::uintptr_t ahead = (b.begin % stride + stride - a.begin % stride) % stride;
  return ahead < static_cast<std::uintptr_t>(a.width) ||
         stride - ahead < static_cast<std::uintptr_t>(b.width);
}

void Checker::keep(const char* label, const ConstTensor& t, bool written) {
  if (!t.given() || (t.dims() >= 1 && t.size(0) == 0) || (t.dims() == 2 && t.size(1) == 0)) return;
  SHARDLOSS_REQUIRE(!written || t.dims() == 0 || t.size(0) <= 1 || t.stride(0) != 0,
                    std::string(label) + ": an output with stride 0");
  keep(range_of(label, t, written));
}

void Checker::memory(const char* label, const void* data, std::size_t bytes, bool written) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto width = static_cast<std::int64_t>(bytes);
  if (bytes > 0) keep({label, written, begin, begin + bytes, width, width});
}

void Checker::keep(const Range& range) {
  for (const Range& other : ranges_) {
    SHARDLOSS_REQUIRE(!(range.written || other.written) || !overlap(range, other),
                      std::string(range.label) + " overlaps " + other.label);
  }
  ranges_.push_back(range);
}

}  // namespace shardloss::detail
