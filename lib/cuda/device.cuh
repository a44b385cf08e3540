/// \file
/// What kernels share: element types, 16-byte accesses, the exponential, block reductions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels.hpp"
#include "resources.hpp"
#include "shardloss/error.hpp"

namespace shardloss::detail::cuda {

inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

/// Elements of 16 bytes.
template <class T>
inline constexpr int lanes = 16 / static_cast<int>(sizeof(T));

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else
    return __float2half_rn(x);
}

/// 2^x by the special function unit: 2 units in the last place, 2^-inf = 0, tiny results are 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x by the same, 1 unit.
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 16 aligned bytes that are read once: they pass by the L1. Not the read-only path: the same
/// kernel may write them.
__device__ inline uint4 load16(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ inline void store16(void* to, const uint4& v) { *static_cast<uint4*>(to) = v; }

template <class T>
__device__ inline void unpack(const uint4& raw, float (&out)[lanes<T>]) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      out[i] = __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}

template <class T>
__device__ inline uint4 pack(const float (&in)[lanes<T>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      words[i] = __float_as_uint(in[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    } else {
      const __half2 pair = __floats2half2_rn(in[2 * i], in[2 * i + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Element i of a vector that the caller gave: a real, or `absent` where there is none.
__device__ inline float real_at(const InputVector& v, std::int64_t i, float absent) {
  return v.data == nullptr ? absent : static_cast<const float*>(v.data)[i * v.stride];
}

__device__ inline std::int64_t integer_at(const InputVector& v, std::int64_t i) {
  return v.dtype == DType::int64 ? static_cast<const std::int64_t*>(v.data)[i * v.stride]
                                 : static_cast<const std::int32_t*>(v.data)[i * v.stride];
}

template <class T>
__device__ inline void put(const OutputVector<T>& v, std::int64_t i, T value) {
  if (v.data != nullptr) v.data[i * v.stride] = value;
}

__device__ inline bool points_outside(const RowSelection& s, std::int64_t i) {
  return s.index != nullptr && (s.index[i] < 0 || s.index[i] >= s.rows);
}

/// The caller's row. An index that points outside, of which the scan of the targets tells the
/// caller, stands for row 0: nothing else is touched.
__device__ inline std::int64_t caller_row(const RowSelection& s, std::int64_t i) {
  if (s.index == nullptr) return i;
  return points_outside(s, i) ? 0 : s.index[i];
}

__device__ inline std::int64_t group_row(const RowSelection& s, std::int64_t i) {
  return s.index != nullptr && s.index_is_number ? caller_row(s, i) : s.first + i;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  return x;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

/// Folds the `threads` values of a block with `fold`, in a fixed tree; thread 0 returns the result.
/// threads is a power of two.
template <int threads, class T, class Fold>
__device__ inline T block_fold(T mine, T* shared, Fold fold) {
  shared[threadIdx.x] = mine;
  __syncthreads();
#pragma unroll 1
  for (int apart = threads / 2; apart > 0; apart /= 2) {
    if (static_cast<int>(threadIdx.x) < apart)
      shared[threadIdx.x] = fold(shared[threadIdx.x], shared[threadIdx.x + apart]);
    __syncthreads();
  }
  return shared[0];
}

/// Blocks of `threads` that cover `count`, at most `most`.
inline unsigned blocks_for(std::int64_t count, int threads, std::int64_t most = 0x7fffffff) {
  const std::int64_t blocks = (count + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > most ? most : blocks));
}

/// A value of the element type a DType names on the device.
template <class T>
struct ElementType {
  using type = T;
};

/// Calls body(ElementType<T>) for the device type of `dtype`: the one dtype switch of the kernels.
template <class Body>
void with_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float32: return body(ElementType<float>{});
    case DType::bfloat16: return body(ElementType<__nv_bfloat16>{});
    case DType::float16: return body(ElementType<__half>{});
    default:
      throw Error(ErrorCode::internal,
                  "no CUDA kernel for this dtype, wanted float32, bfloat16 or "
                  "float16");
  }
}

}  // namespace shardloss::detail::cuda
