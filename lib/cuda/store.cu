// Gradients out of their accumulators: out[row first + i of the selection, :] (+)= in[i, :],
// [rows, columns], from one floating dtype to another. Bytes: each element read once and written
// once (read too where it is added to). Eight elements a thread, in 16-byte accesses where rows are
// aligned.
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;
constexpr int group = 8;

template <class T>
__device__ void load_group(const T* at, float (&out)[group]) {
#pragma unroll
  for (int k = 0; k < group / lanes<T>; ++k)
    unpack<T>(load16(at + k * lanes<T>), reinterpret_cast<float(&)[lanes<T>]>(out[k * lanes<T>]));
}

template <class T>
__device__ void store_group(T* at, const float (&in)[group]) {
#pragma unroll
  for (int k = 0; k < group / lanes<T>; ++k)
    store16(at + k * lanes<T>,
            pack<T>(reinterpret_cast<const float(&)[lanes<T>]>(in[k * lanes<T>])));
}

struct StoreShape {
  std::int64_t rows, columns, in_stride, out_stride, first;
  RowSelection select;
  bool accumulate, aligned;
};

template <class In, class Out>
__global__ void __launch_bounds__(threads) store_kernel(const In* in, Out* out, StoreShape s) {
  const std::int64_t groups = (s.columns + group - 1) / group;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
       i < s.rows * groups; i += step) {
    const std::int64_t row = i / groups;
    const std::int64_t column = i % groups * group;
    const In* from = in + row * s.in_stride + column;
    Out* to = out + caller_row(s.select, s.first + row) * s.out_stride + column;
    if (s.aligned && column + group <= s.columns) {
      float values[group];
      load_group(from, values);
      if (s.accumulate) {
        float before[group];
        load_group(to, before);
#pragma unroll
        for (int k = 0; k < group; ++k) values[k] += before[k];
      }
      store_group(to, values);
    } else {
      const std::int64_t left = s.columns - column;
      for (int k = 0; k < group && k < left; ++k) {
        const float value = to_float(from[k]);
        to[k] = from_float<Out>(s.accumulate ? to_float(to[k]) + value : value);
      }
    }
  }
}

}  // namespace

void store_rows(const InputMatrix& in, std::int64_t rows, std::int64_t columns,
                const RowSelection& select, std::int64_t first, const OutputMatrix& out,
                bool accumulate, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const auto aligned = [](const void* data, std::int64_t stride, DType dtype) {
    const auto bytes = static_cast<std::uintptr_t>(stride) * size_of(dtype);
    return (reinterpret_cast<std::uintptr_t>(data) | bytes) % 16 == 0;
  };
  const StoreShape shape{
      rows,
      columns,
      in.row_stride,
      out.row_stride,
      first,
      select,
      accumulate,
      aligned(in.data, in.row_stride, in.dtype) && aligned(out.data, out.row_stride, out.dtype)};
  const std::int64_t groups = (columns + group - 1) / group;
  with_element(in.dtype, [&]<class In>(ElementType<In>) {
    with_element(out.dtype, [&]<class Out>(ElementType<Out>) {
      store_kernel<<<blocks_for(rows * groups, threads, std::int64_t{1} << 20), threads, 0,
                     stream>>>(static_cast<const In*>(in.data), static_cast<Out*>(out.data), shape);
    });
  });
  SHARDLOSS_LAUNCHED("store_kernel");
}

}  // namespace shardloss::detail::cuda
