#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>

#include "hashed.hpp"

namespace shardloss::test {
namespace {

__device__ void store(float value, float* to) { *to = value; }
__device__ void store(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }
__device__ void store(float value, __half* to) { *to = __float2half_rn(value); }

template <class T>
__global__ void fill_kernel(T* out, HashedMatrix m, std::int64_t first, std::int64_t rows) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float scale = row_scale(m, first + row);
    for (std::int64_t column = threadIdx.x; column < m.columns; column += blockDim.x)
      store(element_of(m, first + row, column, scale), out + row * m.columns + column);
  }
}

template <class T>
void launch(void* out, const HashedMatrix& m, std::int64_t first, std::int64_t rows,
            cudaStream_t stream) {
  if (rows > 0) fill_kernel<<<4096, 256, 0, stream>>>(static_cast<T*>(out), m, first, rows);
}

}  // namespace

void fill_hashed(void* out, DType dtype, const HashedMatrix& m, std::int64_t first,
                 std::int64_t rows, cudaStream_t stream) {
  switch (dtype) {
    case DType::float32: launch<float>(out, m, first, rows, stream); break;
    case DType::bfloat16: launch<__nv_bfloat16>(out, m, first, rows, stream); break;
    case DType::float16: launch<__half>(out, m, first, rows, stream); break;
    default: throw std::runtime_error("fill_hashed: float32, bfloat16 or float16");
  }
  if (cudaPeekAtLastError() != cudaSuccess) throw std::runtime_error("launch of fill_kernel");
}

}  // namespace shardloss::test
