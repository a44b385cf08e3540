/// \file
/// Elements of every DType as doubles: by arithmetic, not by the bit tricks under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
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
inline void store(double value, DType dtype, void* to) {
  const double exact = rounded(value, dtype);
  switch (dtype) {
    case DType::float64: std::memcpy(to, &exact, 8); break;
    case DType::float32: {
      const auto single = static_cast<float>(exact);
      std::memcpy(to, &single, 4);
      break;
    }
    case DType::bfloat16: {
      const auto single = static_cast<float>(exact);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &single, 4);
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(to, &upper, 2);
      break;
    }
    case DType::float16: {
      const std::uint16_t bits = float16_bits(exact);
      std::memcpy(to, &bits, 2);
      break;
    }
    case DType::int64: {
      const auto whole = static_cast<std::int64_t>(value);
      std::memcpy(to, &whole, 8);
      break;
    }
    case DType::int32: {
      const auto whole = static_cast<std::int32_t>(value);
      std::memcpy(to, &whole, 4);
      break;
    }
    case DType::uint8: *static_cast<std::uint8_t*>(to) = static_cast<std::uint8_t>(value); break;
  }
}

/// Reads an element as a double.
inline double load(DType dtype, const void* from) {
  switch (dtype) {
    case DType::float64: {
      double value = 0;
      std::memcpy(&value, from, 8);
      return value;
    }
    case DType::float32: {
      float value = 0;
      std::memcpy(&value, from, 4);
      return static_cast<double>(value);
    }
    case DType::bfloat16: {
      std::uint16_t upper = 0;
      std::memcpy(&upper, from, 2);
      const std::uint32_t bits = static_cast<std::uint32_t>(upper) << 16;
      float value = 0;
      std::memcpy(&value, &bits, 4);
      return static_cast<double>(value);
    }
    case DType::float16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, 2);
      return float16_value(bits);
    }
    case DType::int64: {
      std::int64_t value = 0;
      std::memcpy(&value, from, 8);
      return static_cast<double>(value);
    }
    case DType::int32: {
      std::int32_t value = 0;
      std::memcpy(&value, from, 4);
      return value;
    }
    case DType::uint8: return *static_cast<const std::uint8_t*>(from);
  }
  return 0;
}

}  // namespace shardloss::test
