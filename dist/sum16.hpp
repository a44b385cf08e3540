/// \file
/// Sums of 16-bit floating-point vectors, which MPI does not know: each element is widened to
/// float32, added, and rounded to nearest even.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace shardloss::detail {

inline float widen_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t round_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const std::uint32_t quiet = bits | 0x00400000;  // rounding could turn a NaN into infinity
  return static_cast<std::uint16_t>((value == value ? rounded : quiet) >> 16);
}

inline float widen_float16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t body = (bits & 0x7fffu) << 13;
  // The exponents' biases differ by 112: scaling normalises subnormal numbers too.
  const std::uint32_t scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(body) * 0x1p112f);
  const std::uint32_t special = body >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity, NaN
  return std::bit_cast<float>(sign | scaled | special);
}

inline std::uint16_t round_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t size = bits & 0x7fffffffu;
  // Below 2^-14 the spacing is 2^-24, which is that of float32 in [0.5, 1): the addition rounds.
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1)) >> 13;
  std::uint32_t result = size < 0x38800000u ? tiny : normal;
  if (size >= 0x477ff000u) result = size > 0x7f800000u ? 0x7e00u : 0x7c00u;  // 65520 and up, NaN
  return static_cast<std::uint16_t>(sign | result);
}

/// sum[i] += in[i].
inline void add_bfloat16(const std::uint16_t* in, std::uint16_t* sum, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] = round_bfloat16(widen_bfloat16(in[i]) + widen_bfloat16(sum[i]));
  }
}

/// sum[i] += in[i].
inline void add_float16(const std::uint16_t* in, std::uint16_t* sum, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] = round_float16(widen_float16(in[i]) + widen_float16(sum[i]));
  }
}

}  // namespace shardloss::detail
