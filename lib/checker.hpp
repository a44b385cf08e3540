/// \file
/// What a tensor of a call may be, and whether two of them meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardloss/error.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::detail {

/// The argument check macro of the library: a condition, and a text with both sides.
#define SHARDLOSS_REQUIRE(condition, text)                                         \
  do {                                                                             \
    if (!(condition)) throw Error(ErrorCode::invalid_argument, std::string(text)); \
  } while (false)

/// A tensor as it is wanted.
struct Wanted {
  std::vector<DType> dtypes;
  int dims = 0;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

/// Checks the tensors of one call; each check throws Error(invalid_argument) naming `label`, what
/// was found and what was wanted.
class Checker {
 public:
  /// Of a problem in `dtype`, computed on `device`.
  Checker(DType dtype, Device device) : dtype_(dtype), device_(device) {}

  /// The dtype of weights, upstreams and per-row outputs.
  DType real() const { return dtype_ == DType::float64 ? DType::float64 : DType::float32; }
  /// Whether the elements of tensors can be read here and now.
  bool on_host() const { return device_.kind == DeviceKind::cpu; }

  void check(const char* label, const ConstTensor& t, const Wanted& wanted) const;
  /// A matrix whose rows are dense.
  void check_matrix(const char* label, const ConstTensor& t, const Wanted& wanted) const;
  /// A contiguous vector.
  void check_dense(const char* label, const ConstTensor& t, const Wanted& wanted) const;
  /// Absent unless the problem announces it, present where it does. Returns `option`.
  bool announced(const char* label, const ConstTensor& t, bool option) const;

  /// Keep what is read and what is written: no output may meet anything kept before.
  void input(const char* label, const ConstTensor& t) { keep(label, t, false); }
  void output(const char* label, const ConstTensor& t) { keep(label, t, true); }
  void memory(const char* label, const void* data, std::size_t bytes, bool written);

 private:
  struct Range {
    const char* label;
    bool written;
    std::uintptr_t begin, end;   // bytes
    std::int64_t stride, width;  // bytes from one run to the next, bytes of a run
  };
  static Range range_of(const char* label, const ConstTensor& t, bool written);
  static bool overlap(const Range& a, const Range& b);
  void keep(const char* label, const ConstTensor& t, bool written);
  void keep(const Range& range);

  DType dtype_;
  Device device_;
  std::vector<Range> ranges_;
};

}  // namespace shardloss::detail
