// The bias gradient of a chunk: sums[v] (+)= alpha sum_j dU[j, v], dU [C, columns]; from the column
// sums that the kernel of dU left, or where it left none, from dU.
//
// Bytes, from dU: C columns elements read. A block takes 16 vectors of columns and all rows, 32 at
// a time; each thread adds every 32nd row, then the 32 partial sums of a column are added in order:
// the same bits in every run, and no partial results in memory.
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int vectors = 16;
constexpr int row_lanes = 32;
constexpr int unroll = 4;

template <class T, int width>
__device__ void add_row(const T* at, float (&sums)[width], int valid) {
  if (valid == width) {
    float values[width];
    unpack<T>(load16(at), values);
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] += values[i];
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i)
      if (i < valid) sums[i] += to_float(at[i]);
  }
}

template <class T>
__global__ void __launch_bounds__(vectors* row_lanes)
    columns_kernel(const T* dlogits, std::int64_t row_stride, std::int64_t rows,
                   std::int64_t columns, const ChunkScale* scale, bool first, float* sums) {
  constexpr int width = lanes<T>;
  __shared__ float shared[row_lanes][vectors * width + 1];
  const int vector = static_cast<int>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.y);
  const std::int64_t block_column = static_cast<std::int64_t>(blockIdx.x) * vectors * width;
  const std::int64_t column = block_column + vector * width;
  const std::int64_t left = columns - column;
  const int valid = static_cast<int>(left < 0 ? 0 : (left < width ? left : width));

  float own[width] = {};
  if (valid > 0) {
    const T* at = dlogits + lane * row_stride + column;
    const std::int64_t step = row_lanes * row_stride;
    std::int64_t row = lane;
    if (valid == width) {
      for (; row + (unroll - 1) * row_lanes < rows; row += unroll * row_lanes) {
        uint4 raw[unroll];
#pragma unroll
        for (int j = 0; j < unroll; ++j) raw[j] = load16(at + j * step);
#pragma unroll
        for (int j = 0; j < unroll; ++j) {
          float values[width];
          unpack<T>(raw[j], values);
#pragma unroll
          for (int i = 0; i < width; ++i) own[i] += values[i];
        }
        at += unroll * step;
      }
    }
    for (; row < rows; row += row_lanes, at += step) add_row<T, width>(at, own, valid);
  }
#pragma unroll
  for (int i = 0; i < width; ++i) shared[lane][vector * width + i] = own[i];
  __syncthreads();
  const int mine = lane * vectors + vector;
  if (mine >= vectors * width || block_column + mine >= columns) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < row_lanes; ++i) sum += shared[i][mine];
  float& out = sums[block_column + mine];
  out = first ? scale->alpha * sum : fmaf(scale->alpha, sum, out);
}

__global__ void __launch_bounds__(256)
    shares_kernel(const float* shares, std::int64_t lines, std::int64_t columns,
                  const ChunkScale* scale, bool first, float* sums) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (column >= columns) return;
  float sum = 0.0f;
#pragma unroll 8
  for (std::int64_t line = 0; line < lines; ++line) sum += shares[line * columns + column];
  sums[column] = first ? scale->alpha * sum : fmaf(scale->alpha, sum, sums[column]);
}

}  // namespace

void add_column_shares(const float* shares, std::int64_t lines, std::int64_t columns,
                       const ChunkScale* scale, bool first, float* sums, cudaStream_t stream) {
  shares_kernel<<<blocks_for(columns, 256), 256, 0, stream>>>(shares, lines, columns, scale, first,
                                                              sums);
  SHARDLOSS_LAUNCHED("shares_kernel");
}

void sum_columns(const InputMatrix& dlogits, std::int64_t rows, std::int64_t columns,
                 const ChunkScale* scale, bool first, float* sums, cudaStream_t stream) {
  if (columns == 0) return;
  with_element(dlogits.dtype, [&]<class T>(ElementType<T>) {
    columns_kernel<T>
        <<<blocks_for(columns, vectors * lanes<T>), dim3(vectors, row_lanes), 0, stream>>>(
            static_cast<const T*>(dlogits.data), dlogits.row_stride, rows, columns, scale, first,
            sums);
  });
  SHARDLOSS_LAUNCHED("columns_kernel");
}

}  // namespace shardloss::detail::cuda
