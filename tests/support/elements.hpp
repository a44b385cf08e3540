/// \file
/// Elements of every DType as doubles: by arithmetic, not by the bit tricks under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "shardloss/tensor.hpp"

namespace shardloss::test {

/// `value` rounded to the nearest number of `digits` significant bits whose smallest normal is
/// 2^lowest, ties to even; infinite from 2^(highest + 1) - half a unit on.
inline double round_to(double value, int digits, int lowest, int highest) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent - 1), 2^exponent)
  const int unit = std::max(exponent - 1, lowest) - (digits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::abs(rounded) >= std::ldexp(1.0, highest + 1))
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  return rounded;
}

/// `value` as a tensor of `dtype` holds it.
inline double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::float32: return round_to(value, 24, -126, 127);
    case DType::bfloat16: return round_to(value, 8, -126, 127);
    case DType::float16: return round_to(value, 11, -14, 15);
    default: return value;
  }
}

/// The bits of a number that float16 holds exactly.
inline std::uint16_t float16_bits(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  const double size = std::abs(value);
  if (size < std::ldexp(1.0, -14))
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(size, 24)));
  int exponent = 0;
  const double fraction = std::frexp(size, &exponent);  // [0.5, 1)
  return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) |
                                    (static_cast<int>(std::ldexp(fraction, 11)) - 1024));
}

/// The value of a float16.
inline double float16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

/// Writes rounded(value, dtype), or an integer, to `to`.
void store(double value, DType dtype, void* to);

/// Reads an element as a double.
double load(DType dtype, const void* from);

}  // namespace shardloss::test
