/// \file
/// The gradient of a row's logits from its coefficients.
#pragma once

#include <cstdint>

#include "logits.cuh"

namespace shardloss::detail::cuda {

__device__ inline int padded(int columns) { return (columns + 7) / 8 * 8; }

/// A row's coefficients ready for use: over the chunk's power of two, and p_v = 2^(z log2 e -
/// offset); where the maximum is far, 2^((z - max) log2 e - offset).
struct alignas(16) RowTerms {
  float offset;
  float max;
  float a, g, b, c;
  int column;
  bool zero, far;
  std::int64_t row;  // of the soft targets
};

/// `inverse`: of the chunk's power of two.
__device__ inline RowTerms terms_of(const RowCoefficients<float>& row, float inverse) {
  RowTerms t;
  // M log2 e + log_sum log2 e, and what its roundings lost, so that the p of a row add up to 1.
  t.far = is_far(row.max);
  const float m = t.far ? 0.0f : offset_of(row.max);
  const float l = __fmul_rn(row.log_sum, log2_e);
  t.offset = m + l;
  const float l_part = t.offset - m;
  const float lost = (m - (t.offset - l_part)) + (l - l_part) + rounding_of(row.max);
  const float correction = exp2_fast(-lost);
  t.max = row.max;
  t.a = row.a * inverse * correction;
  t.g = row.g * inverse * correction;
  t.b = row.b * inverse;
  t.c = row.c * inverse;
  t.column = static_cast<int>(row.column);
  t.zero = row.a == 0.0f && row.g == 0.0f && row.b == 0.0f && row.c == 0.0f;
  t.row = row.row;
  return t;
}

/// p_v (A + G (z_v - M)) + C_v. `guarded`: also where z_v - M is -inf or nearly, or M is far.
template <unsigned features, bool guarded>
__device__ float smooth_part(float z, float w, const RowTerms& t) {
  const float relative = guarded && t.far ? z - t.max : z;
  const float p = exp2_fast(fmaf(relative, log2_e, -t.offset));
  const float distance = guarded ? fmaxf(z - t.max, lowest) : z - t.max;
  const float c = (features & (with_classes | with_soft)) != 0 ? t.c * w : t.c;
  const float du = fmaf(p, fmaf(t.g, distance, t.a), c);
  return guarded && z == -infinity() ? 0.0f : du;
}

template <class T, unsigned features, int count>
__device__ void gradient(float (&u)[count], const float (&w)[count], const RowTerms& t,
                         const LogitScale& scale, int column) {
  if (t.zero) {
#pragma unroll
    for (int i = 0; i < count; ++i) u[i] = 0.0f;
    return;
  }
  float slope[count];
  float du[count];
  cap_logits<T, (features & with_cap) != 0>(u, scale, slope);
  float least = u[0];
#pragma unroll
  for (int i = 1; i < count; ++i) least = fminf(least, u[i]);
  if (t.far || least < t.max + lowest) {  // seldom
#pragma unroll
    for (int i = 0; i < count; ++i) du[i] = slope[i] * smooth_part<features, true>(u[i], w[i], t);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) du[i] = slope[i] * smooth_part<features, false>(u[i], w[i], t);
  }
  // One thread of the row has the target among its columns.
  const unsigned target = static_cast<unsigned>(t.column - column);
  if (t.column >= 0 && target < count) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (i == target && u[i] != -infinity()) du[i] = fmaf(t.b, slope[i], du[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) u[i] = du[i];
}

}  // namespace shardloss::detail::cuda
