#include "convert.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardloss::launch {
namespace {

/// A 16-bit floating format.
struct Short {
  int fraction_bits;
  int bias;
};
constexpr Short bfloat16_format{7, 127};
constexpr Short float16_format{10, 15};

/// From double in one rounding (through float there would be two).
std::uint16_t encode(double value, Short format) {
  // Nearly all values are normal in both formats: their bits are rounded where the fraction ends.
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t normal = bits & ~(std::uint64_t{1} << 63);
  const auto exponent_field = [](int power) {
    return static_cast<std::uint64_t>(1023 + power) << 52;
  };
  if (normal >= exponent_field(1 - format.bias) && normal < exponent_field(format.bias + 1)) {
    const int dropped = 52 - format.fraction_bits;
    const std::uint64_t half = (std::uint64_t{1} << (dropped - 1)) - 1 + (normal >> dropped & 1);
    const std::uint64_t shift = static_cast<std::uint64_t>(1023 - format.bias)
                                << format.fraction_bits;
    return static_cast<std::uint16_t>(bits >> 63 << 15 | (((normal + half) >> dropped) - shift));
  }
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const int max_exponent = 2 * format.bias + 1;
  const auto infinity = static_cast<std::uint16_t>(max_exponent << format.fraction_bits);
  if (std::isnan(value))
    return static_cast<std::uint16_t>(sign | infinity | 1 << (format.fraction_bits - 1));
  if (std::isinf(value)) return sign | infinity;
  int exponent = 0;
  const double magnitude = std::frexp(std::abs(value), &exponent);  // in [1/2, 1), or 0
  if (magnitude == 0) return sign;
  // Units in the last place of the result; subnormals share the smallest normal's.
  const int unit = std::max(exponent - 1, 1 - format.bias) - format.fraction_bits;
  const double units = std::nearbyint(std::ldexp(magnitude, exponent - unit));
  // With the hidden bit as part of the sum, a carry moves into the exponent by itself.
  const double code =
      units + std::ldexp(unit + format.fraction_bits + format.bias - 1, format.fraction_bits);
  return sign | static_cast<std::uint16_t>(std::min(code, static_cast<double>(infinity)));
}

double decode(std::uint16_t bits, Short format) {
  if (format.fraction_bits == bfloat16_format.fraction_bits)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = bits >> format.fraction_bits & (2 * format.bias + 1);
  double value = 0;
  if (exponent == 2 * format.bias + 1)
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(fraction, 1 - format.bias - format.fraction_bits);
  else
    value = std::ldexp(fraction + (1 << format.fraction_bits),
                       exponent - format.bias - format.fraction_bits);
  return bits & 0x8000 ? -value : value;
}

template <class T>
T get(const void* from, std::int64_t i) {
  T value;
  std::memcpy(&value,
              static_cast<const std::byte*>(from) + i * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void put(void* to, std::int64_t i, T value) {
  std::memcpy(static_cast<std::byte*>(to) + i * static_cast<std::int64_t>(sizeof(T)), &value,
              sizeof(T));
}

double load(const void* from, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::float64: return get<double>(from, i);
    case DType::float32: return get<float>(from, i);
    case DType::bfloat16: return decode(get<std::uint16_t>(from, i), bfloat16_format);
    case DType::float16: return decode(get<std::uint16_t>(from, i), float16_format);
    default: return 0;
  }
}

void store(void* to, DType dtype, std::int64_t i, double value) {
  switch (dtype) {
    case DType::float64: return put(to, i, value);
    case DType::float32: return put(to, i, static_cast<float>(value));
    case DType::bfloat16: return put(to, i, encode(value, bfloat16_format));
    case DType::float16: return put(to, i, encode(value, float16_format));
    default: return;
  }
}

std::int64_t load_integer(const void* from, DType dtype, std::int64_t i) {
  if (dtype == DType::int64) return get<std::int64_t>(from, i);
  if (dtype == DType::int32) return get<std::int32_t>(from, i);
  return get<std::uint8_t>(from, i);
}

void store_integer(void* to, DType dtype, std::int64_t i, std::int64_t value) {
  if (dtype == DType::int64) return put(to, i, value);
  if (dtype == DType::int32) return put(to, i, static_cast<std::int32_t>(value));
  put(to, i, static_cast<std::uint8_t>(value));
}

}  // namespace

void convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count) {
  if (count == 0) return;
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(to_dtype));
  } else if (is_floating(from_dtype)) {
#pragma omp parallel for if (count > 1 << 16)
    for (std::int64_t i = 0; i < count; ++i) store(to, to_dtype, i, load(from, from_dtype, i));
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      store_integer(to, to_dtype, i, load_integer(from, from_dtype, i));
  }
}

double rounded(double value, DType dtype) {
  double storage = 0;
  store(&storage, dtype, 0, value);
  return load(&storage, dtype, 0);
}

}  // namespace shardloss::launch
