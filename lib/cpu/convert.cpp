// Conversions between storage and arithmetic types, in integer arithmetic that vectorises: no
// branches, and no float operation on a subnormal (those take a slow path in the processor, and
// small float16 gradients are full of them).
#include "convert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "shardloss/error.hpp"
#include "simd.hpp"
#include "vector_math.hpp"

namespace shardloss::detail::cpu {
namespace {

constexpr std::uint32_t float_infinity = 0x7f800000U;
constexpr std::uint32_t sign_bit = 0x80000000U;
constexpr std::uint32_t rebias = (127U - 15U) << 23;  // float16's exponent to float's

SHARDLOSS_INLINE float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

SHARDLOSS_INLINE std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & ~sign_bit) > float_infinity ? quiet : rounded);
}

SHARDLOSS_INLINE float float16_to_float(std::uint16_t half) {
  const std::uint32_t bits = half;
  const std::uint32_t magnitude = (bits & 0x7fffU) << 13;
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(bits & 0x3ffU)) * 0x1p-24F;
  std::uint32_t result = magnitude + rebias;
  result = magnitude >= (31U << 23) ? result + rebias : result;  // infinity and NaN
  result = magnitude < (1U << 23) ? std::bit_cast<std::uint32_t>(subnormal) : result;
  return std::bit_cast<float>(result | (bits & 0x8000U) << 16);
}

SHARDLOSS_INLINE std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~sign_bit;
  const std::uint32_t shifted = magnitude - rebias;
  const std::uint32_t normal = (shifted + 0xfffU + ((shifted >> 13) & 1U)) >> 13;
  // Below 2^-14 an addition to 0.5 rounds to multiples of 2^-24, float16's smallest.
  const std::uint32_t visible = magnitude < 0x33000000U ? 0U : magnitude;  // 2^-25
  const float lifted = std::bit_cast<float>(visible) + 0.5F;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(lifted) - 0x3f000000U;
  const std::uint32_t special = magnitude > float_infinity ? 0x7e00U : 0x7c00U;
  std::uint32_t result = magnitude < 0x38800000U ? subnormal : normal;  // 2^-14
  result = magnitude >= 0x47800000U ? special : result;                 // 2^16
  return static_cast<std::uint16_t>(result | (bits & sign_bit) >> 16);
}

SHARDLOSS_CLONES void expand_bfloat16(const std::uint16_t* in, std::int64_t n, float* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = bfloat16_to_float(in[i]);
}

SHARDLOSS_CLONES void expand_float16(const std::uint16_t* in, std::int64_t n, float* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = float16_to_float(in[i]);
}

SHARDLOSS_CLONES void round_bfloat16(const float* in, std::int64_t n, std::uint16_t* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = float_to_bfloat16(in[i]);
}

SHARDLOSS_CLONES void round_float16(const float* in, std::int64_t n, std::uint16_t* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = float_to_float16(in[i]);
}

[[noreturn]] void refuse(DType dtype, const char* real) {
  throw Error(ErrorCode::internal,
              "no conversion between " + std::string(name(dtype)) + " and " + real);
}

}  // namespace

void to_real(DType dtype, const void* in, std::int64_t n, float* out) {
  switch (dtype) {
    case DType::float32: std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof *out); return;
    case DType::bfloat16: expand_bfloat16(static_cast<const std::uint16_t*>(in), n, out); return;
    case DType::float16: expand_float16(static_cast<const std::uint16_t*>(in), n, out); return;
    default: refuse(dtype, "float");
  }
}

void to_real(DType dtype, const void* in, std::int64_t n, double* out) {
  if (dtype != DType::float64) refuse(dtype, "double");
  std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof *out);
}

void from_real(const float* in, std::int64_t n, DType dtype, void* out) {
  switch (dtype) {
    case DType::float32: std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof *in); return;
    case DType::bfloat16: round_bfloat16(in, n, static_cast<std::uint16_t*>(out)); return;
    case DType::float16: round_float16(in, n, static_cast<std::uint16_t*>(out)); return;
    default: refuse(dtype, "float");
  }
}

void from_real(const double* in, std::int64_t n, DType dtype, void* out) {
  if (dtype != DType::float64) refuse(dtype, "double");
  std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof *in);
}

template <class Real>
void store(const Real* x, std::int64_t n, bool accumulate, DType dtype, void* result) {
  if (!accumulate) {
    from_real(x, n, dtype, result);
    return;
  }
  std::array<Real, block_size> buffer;
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    const std::int64_t count = std::min(block_size, n - begin);
    void* block = element(result, dtype, begin);
    to_real(dtype, block, count, buffer.data());
    add(x + begin, count, buffer.data());
    from_real(buffer.data(), count, dtype, block);
  }
}

template void store(const float*, std::int64_t, bool, DType, void*);
template void store(const double*, std::int64_t, bool, DType, void*);

}  // namespace shardloss::detail::cpu
