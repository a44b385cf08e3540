// The embedding: rows of the shard's weight by id, and their gradient.
//
//   look-up  out[i, :] = weight[id_i - first, :], or zeros where another shard owns the id: exact
//            under the sum over ranks. C D elements read and written.
//   scatter  grad[id - first, :] += sum of in[i, :] over the i of that id, i ascending. Ids are
//            sorted with their rows (a stable radix sort keeps the rows of an id in order); a block
//            then takes the run of one id. No two blocks write one row: the same bits in every run.
#include <cub/device/device_radix_sort.cuh>

#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads)
    pack_kernel(InputVector ids, std::int64_t first, std::int64_t rows, std::int64_t* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < rows) out[i] = integer_at(ids, first + i);
}

// One warp a row.
template <class T>
__global__ void __launch_bounds__(threads)
    look_up_kernel(const std::int64_t* ids, std::int64_t rows, std::int64_t width,
                   Objective<float> shard, const T* weight, std::int64_t stride, T* out) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t place = shard.column_of(ids[row]);
  const T* source = place >= 0 ? weight + place * stride : nullptr;
  T* target = out + row * width;
  for (std::int64_t i = threadIdx.x % 32; i < width; i += 32)
    target[i] = source == nullptr ? T{} : source[i];
}

constexpr std::uint32_t elsewhere = ~0u;

__global__ void __launch_bounds__(threads)
    keys_kernel(const std::int64_t* ids, std::int64_t rows, Objective<float> shard,
                std::uint32_t* keys, std::uint32_t* positions) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= rows) return;
  const std::int64_t place = shard.column_of(ids[i]);
  keys[i] = place >= 0 ? static_cast<std::uint32_t>(place) : elsewhere;
  positions[i] = static_cast<std::uint32_t>(i);
}

// A block for each sorted place; those at the beginning of a run do the run.
template <class In, class Out>
__global__ void __launch_bounds__(threads)
    runs_kernel(const std::uint32_t* keys, const std::uint32_t* positions, std::int64_t rows,
                std::int64_t columns, const In* in, std::int64_t in_stride, Out* grad,
                std::int64_t grad_stride) {
  const std::int64_t begin = blockIdx.x;
  const std::uint32_t key = keys[begin];
  if (key == elsewhere || (begin > 0 && keys[begin - 1] == key)) return;
  Out* out = grad + static_cast<std::int64_t>(key) * grad_stride;
  for (std::int64_t column = threadIdx.x; column < columns; column += threads) {
    float sum = 0.0f;
    for (std::int64_t i = begin; i < rows && keys[i] == key; ++i)
      sum += to_float(in[static_cast<std::int64_t>(positions[i]) * in_stride + column]);
    out[column] = from_float<Out>(to_float(out[column]) + sum);
  }
}

// The scratch of a scatter: keys and positions twice, then the sort's own.
struct ScatterScratch {
  cub::DoubleBuffer<std::uint32_t> keys, positions;
  std::byte* sort;
  std::size_t sort_bytes;
};

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

ScatterScratch lay_out(std::int64_t rows, std::byte* scratch, std::size_t scratch_bytes) {
  const std::size_t each = aligned(static_cast<std::size_t>(rows) * sizeof(std::uint32_t));
  const auto part = [&](std::size_t i) {
    return reinterpret_cast<std::uint32_t*>(scratch + i * each);
  };
  return {{part(0), part(1)}, {part(2), part(3)}, scratch + 4 * each, scratch_bytes - 4 * each};
}

std::size_t sort_bytes(std::int64_t rows) {
  cub::DoubleBuffer<std::uint32_t> none(nullptr, nullptr);
  std::size_t bytes = 0;
  SHARDLOSS_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, none, rows));
  return bytes;
}

template <class T>
void look_up_as(const std::int64_t* ids, std::int64_t rows, std::int64_t row_bytes,
                const Objective<float>& shard, const InputMatrix& weight, void* out,
                cudaStream_t stream) {
  const auto each = static_cast<std::int64_t>(size_of(weight.dtype));
  const auto unit = static_cast<std::int64_t>(sizeof(T));
  look_up_kernel<<<blocks_for(rows, threads / 32), threads, 0, stream>>>(
      ids, rows, row_bytes / unit, shard, static_cast<const T*>(weight.data),
      weight.row_stride * each / unit, static_cast<T*>(out));
  SHARDLOSS_LAUNCHED("look_up_kernel");
}

}  // namespace

void pack_ids(const InputVector& ids, std::int64_t first, std::int64_t rows, std::int64_t* out,
              cudaStream_t stream) {
  if (rows == 0) return;
  pack_kernel<<<blocks_for(rows, threads), threads, 0, stream>>>(ids, first, rows, out);
  SHARDLOSS_LAUNCHED("pack_kernel");
}

void look_up(const std::int64_t* ids, std::int64_t rows, std::int64_t columns,
             const Objective<float>& shard, const InputMatrix& weight, void* out,
             cudaStream_t stream) {
  if (rows == 0) return;
  const auto each = static_cast<std::int64_t>(size_of(weight.dtype));
  const auto odd = reinterpret_cast<std::uintptr_t>(weight.data) |
                   reinterpret_cast<std::uintptr_t>(out) |
                   static_cast<std::uintptr_t>(weight.row_stride * each) |
                   static_cast<std::uintptr_t>(columns * each);
  if (odd % 16 == 0)
    look_up_as<uint4>(ids, rows, columns * each, shard, weight, out, stream);
  else if (each == 4)
    look_up_as<std::uint32_t>(ids, rows, columns * each, shard, weight, out, stream);
  else
    look_up_as<std::uint16_t>(ids, rows, columns * each, shard, weight, out, stream);
}

std::size_t scatter_scratch_bytes(std::int64_t rows) {
  if (rows == 0) return 0;
  return 4 * aligned(static_cast<std::size_t>(rows) * sizeof(std::uint32_t)) + sort_bytes(rows);
}

void scatter_rows(const std::int64_t* ids, std::int64_t rows, std::int64_t columns,
                  const Objective<float>& shard, const InputMatrix& in,
                  const OutputMatrix& grad_weight, std::byte* scratch, std::size_t scratch_bytes,
                  cudaStream_t stream) {
  if (rows == 0 || shard.columns == 0) return;
  ScatterScratch s = lay_out(rows, scratch, scratch_bytes);
  keys_kernel<<<blocks_for(rows, threads), threads, 0, stream>>>(ids, rows, shard, s.keys.Current(),
                                                                 s.positions.Current());
  SHARDLOSS_LAUNCHED("keys_kernel");
  SHARDLOSS_CUDA(cub::DeviceRadixSort::SortPairs(s.sort, s.sort_bytes, s.keys, s.positions, rows, 0,
                                                 32, stream));
  with_element(in.dtype, [&]<class In>(ElementType<In>) {
    with_element(grad_weight.dtype, [&]<class Out>(ElementType<Out>) {
      runs_kernel<<<static_cast<unsigned>(rows), threads, 0, stream>>>(
          s.keys.Current(), s.positions.Current(), rows, columns, static_cast<const In*>(in.data),
          in.row_stride, static_cast<Out*>(grad_weight.data), grad_weight.row_stride);
    });
  });
  SHARDLOSS_LAUNCHED("runs_kernel");
}

}  // namespace shardloss::detail::cuda
