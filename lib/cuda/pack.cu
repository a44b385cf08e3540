// Rows of a chunk out of the caller's tensors: what the row brings beside its hidden state
// (RowInput, 40 bytes), the hidden state itself, and the bias in another dtype.
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads) pack_kernel(PackArguments p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= p.rows) return;
  const std::int64_t row = caller_row(p.select, p.first + i);
  RowInput<float> out{};
  out.target = p.targets.data == nullptr ? 0 : integer_at(p.targets, row);
  out.row = group_row(p.select, p.first + i);
  out.weight = real_at(p.weights, row, 1.0f);
  out.upstream_loss = real_at(p.loss, row, 1.0f);
  out.upstream_lse = real_at(p.lse, row, 0.0f);
  out.upstream_logprob = real_at(p.logprob, row, 0.0f);
  out.upstream_entropy = real_at(p.entropy, row, 0.0f);
  p.out[i] = out;
}

// One warp a row: `width` units of T of a row in `in_stride` units.
template <class T>
__global__ void __launch_bounds__(threads)
    gather_kernel(const T* in, std::int64_t in_stride, RowSelection select, std::int64_t first,
                  std::int64_t rows, std::int64_t width, T* out, std::int64_t out_stride) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const T* source = in + caller_row(select, first + row) * in_stride;
  T* target = out + row * out_stride;
  for (std::int64_t i = threadIdx.x % 32; i < width; i += 32) target[i] = source[i];
}

template <class In, class Out>
__global__ void __launch_bounds__(threads)
    convert_kernel(const In* in, Out* out, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < count) out[i] = from_float<Out>(to_float(in[i]));
}

template <class T>
void gather_as(const InputMatrix& in, const RowSelection& select, std::int64_t first,
               std::int64_t rows, std::int64_t row_bytes, const OutputMatrix& out,
               cudaStream_t stream) {
  const auto each = static_cast<std::int64_t>(size_of(in.dtype));
  const auto unit = static_cast<std::int64_t>(sizeof(T));
  gather_kernel<<<blocks_for(rows, threads / 32), threads, 0, stream>>>(
      static_cast<const T*>(in.data), in.row_stride * each / unit, select, first, rows,
      row_bytes / unit, static_cast<T*>(out.data), out.row_stride * each / unit);
  SHARDLOSS_LAUNCHED("gather_kernel");
}

}  // namespace

void pack_row_inputs(const PackArguments& arguments, cudaStream_t stream) {
  if (arguments.rows == 0) return;
  pack_kernel<<<blocks_for(arguments.rows, threads), threads, 0, stream>>>(arguments);
  SHARDLOSS_LAUNCHED("pack_kernel");
}

void gather_rows(const InputMatrix& in, const RowSelection& select, std::int64_t first,
                 std::int64_t rows, std::int64_t columns, const OutputMatrix& out,
                 cudaStream_t stream) {
  if (rows == 0) return;
  const auto each = static_cast<std::int64_t>(size_of(in.dtype));
  const auto misaligned = [](const void* data, std::int64_t bytes) {
    return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes)) % 16 != 0;
  };
  const std::int64_t bytes = columns * each;
  if (!misaligned(in.data, in.row_stride * each | bytes) &&
      !misaligned(out.data, out.row_stride * each)) {
    gather_as<uint4>(in, select, first, rows, bytes, out, stream);
  } else if (each == 4) {
    gather_as<std::uint32_t>(in, select, first, rows, bytes, out, stream);
  } else {
    gather_as<std::uint16_t>(in, select, first, rows, bytes, out, stream);
  }
}

void convert(const void* in, DType in_dtype, void* out, DType out_dtype, std::int64_t count,
             cudaStream_t stream) {
  if (count == 0) return;
  with_element(in_dtype, [&]<class In>(ElementType<In>) {
    with_element(out_dtype, [&]<class Out>(ElementType<Out>) {
      convert_kernel<<<blocks_for(count, threads), threads, 0, stream>>>(
          static_cast<const In*>(in), static_cast<Out*>(out), count);
    });
  });
  SHARDLOSS_LAUNCHED("convert_kernel");
}

}  // namespace shardloss::detail::cuda
