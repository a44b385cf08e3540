/// \file
/// What the two kernels over a chunk's logits share: a logit out of a product, and the weights of a
/// column.
#pragma once

#include "device.cuh"

namespace shardloss::detail::cuda {

/// What a kernel is compiled with; the plain one has none.
enum Feature : unsigned {
  with_argmax = 1,
  with_sums = 2,     ///< entropy, label smoothing
  with_classes = 4,  ///< smoothing under class weights
  with_soft = 8,     ///< soft targets, with or without class weights
  with_cap = 16,
};

/// Stands for z - M = -inf wherever it is multiplied: its exponential is 0 long before.
inline constexpr float lowest = -1.0e4f;

/// Whether M log2 e loses more in a float than an exponent can hold. Masks of -1e10 and lower are
/// such logits, and so is a maximum of -inf. Then z - M comes first, which takes an operation more.
__device__ inline bool is_far(float max) { return fabsf(max) > 0x1p26f; }

/// M log2 e of an M that is not far: never part of a fused operation, so the same everywhere.
__device__ inline float offset_of(float max) { return __fmul_rn(max, log2_e); }

/// What offset_of rounded away.
__device__ inline float rounding_of(float max) {
  return is_far(max) ? 0.0f : fmaf(max, log2_e, -offset_of(max));
}

struct LogitScale {
  float scale;
  float cap;
  float inner;  // scale / cap
};

inline LogitScale scale_of(const Objective<float>& objective) {
  return {objective.scale, objective.cap,
          objective.cap > 0 ? objective.scale / objective.cap : 0.0f};
}

/// Up to here tanh is a polynomial.
inline constexpr float tanh_near_end = 0.9f;

/// tanh within 4e-7 of its value where |x| < tanh_near_end: x + x^3 p(x^2), p the best of its
/// degree there. No operation of the special function unit, of which an exponential takes one: it
/// is what a capped row kernel would wait for.
__device__ inline float tanh_near(float x) {
  const float x2 = x * x;
  float p = fmaf(x2, -3.7644985e-3f, 1.8174015e-2f);
  p = fmaf(x2, p, -5.2630549e-2f);
  p = fmaf(x2, p, 1.3311387e-1f);
  p = fmaf(x2, p, -3.3332145e-1f);
  return fmaf(x * x2, p, x);
}

/// tanh within 4e-7 of its value; from one exponential where it is far from 0. `slope` = 1 - tanh^2
/// = 4 e / (1 + e)^2, e = exp(-2 |x|), which does not cancel where tanh is near 1.
__device__ inline float tanh_fast(float x, float& slope) {
  const float e = exp2_fast(-2.0f * log2_e * fabsf(x));
  const float r = reciprocal_fast(1.0f + e);
  slope = 4.0f * e * r * r;
  return fabsf(x) < tanh_near_end ? tanh_near(x) : copysignf((1.0f - e) * r, x);
}
/// The same to the last digits of a float.
__device__ inline float tanh_exact(float x, float& slope) {
  const float e = expf(-2.0f * fabsf(x));
  slope = 4.0f * e / ((1.0f + e) * (1.0f + e));
  return tanhf(x);
}

/// z of `count` logits u, in place, and in `slope` dz / d(scale u). T: what the logits are stored
/// in; only float32 ones are worth the exact tanh.
template <class T, bool capped, int count>
__device__ inline void cap_logits(float (&u)[count], const LogitScale& s, float (&slope)[count]) {
  if constexpr (!capped) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      u[i] *= s.scale;
      slope[i] = 1.0f;
    }
    return;
  }
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    u[i] *= s.inner;
    largest = fmaxf(largest, fabsf(u[i]));
  }
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < count; ++i) u[i] = tanh_exact(u[i], slope[i]);
  } else if (largest < tanh_near_end) {  // nearly always, for all threads of a warp
#pragma unroll
    for (int i = 0; i < count; ++i) {
      u[i] = tanh_near(u[i]);
      slope[i] = fmaf(-u[i], u[i], 1.0f);
    }
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) u[i] = tanh_fast(u[i], slope[i]);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) u[i] *= s.cap;
}

/// The same of one logit.
template <class T, bool capped>
__device__ inline float logit(float u, const LogitScale& s, float& slope) {
  float z[1] = {u};
  float slopes[1];
  cap_logits<T, capped>(z, s, slopes);
  slope = slopes[0];
  return z[0];
}

/// `count` floats from `from`; 16 bytes at a time where they are aligned.
template <int count>
__device__ inline void load_floats(const float* from, float (&out)[count]) {
  if constexpr (count % 4 == 0) {
    if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < count / 4; ++i) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(from) + i);
        out[4 * i] = v.x;
        out[4 * i + 1] = v.y;
        out[4 * i + 2] = v.z;
        out[4 * i + 3] = v.w;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) out[i] = __ldg(from + i);
}

template <class T, int count>
__device__ inline void load_converted(const T* from, float (&out)[count]) {
  if constexpr (count == lanes<T>) {
    if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) return unpack<T>(load16(from), out);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) out[i] = to_float(from[i]);
}

/// c_v q'_v of `count` columns from `column` of a soft-target row.
template <int count>
__device__ inline void load_soft(const LogitsArguments& on, std::int64_t row, int column,
                                 float (&out)[count]) {
  const std::int64_t at = row * on.soft_targets.row_stride + column;
  switch (on.soft_targets.dtype) {
    case DType::bfloat16:
      load_converted(static_cast<const __nv_bfloat16*>(on.soft_targets.data) + at, out);
      break;
    case DType::float16:
      load_converted(static_cast<const __half*>(on.soft_targets.data) + at, out);
      break;
    default: load_floats(static_cast<const float*>(on.soft_targets.data) + at, out);
  }
  const float even = on.objective.smoothing / static_cast<float>(on.objective.vocab);
#pragma unroll
  for (int i = 0; i < count; ++i) out[i] = fmaf(1.0f - on.objective.smoothing, out[i], even);
  if (on.class_weights == nullptr) return;
  float classes[count];
  load_floats(on.class_weights + column, classes);
#pragma unroll
  for (int i = 0; i < count; ++i) out[i] *= classes[i];
}

/// Calls body with the constant `features` and, where there is a cap, with_cap added to it.
template <unsigned features, class Body>
void with_or_without_cap(const Objective<float>& objective, Body&& body) {
  if (objective.cap > 0)
    body(std::integral_constant<unsigned, features | with_cap>{});
  else
    body(std::integral_constant<unsigned, features>{});
}

}  // namespace shardloss::detail::cuda
