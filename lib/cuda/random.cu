// Reproducible values for timing products: what a matrix holds decides how much power a product
// draws, and so how fast it runs; zeros would flatter.
#include "../hash.hpp"
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

// The sum of four uniform 16-bit numbers, near enough to a normal distribution.
template <class T>
__global__ void __launch_bounds__(threads)
    random_kernel(T* out, std::int64_t count, float deviation, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < count;
       i += step) {
    const std::uint64_t x = spread(seed + static_cast<std::uint64_t>(i) * golden_ratio);
    float sum = -2.0f;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>(x >> (16 * k) & 0xffff) * (1.0f / 65535);
    out[i] = from_float<T>(deviation * 1.7320508f * sum);
  }
}

}  // namespace

void fill_random(void* out, DType dtype, std::int64_t count, float deviation, std::uint64_t seed,
                 cudaStream_t stream) {
  if (count == 0) return;
  with_element(dtype, [&]<class T>(ElementType<T>) {
    random_kernel<<<blocks_for(count, threads, 4096), threads, 0, stream>>>(static_cast<T*>(out),
                                                                            count, deviation, seed);
  });
  SHARDLOSS_LAUNCHED("random_kernel");
}

}  // namespace shardloss::detail::cuda
