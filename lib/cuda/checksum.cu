// Whether two results are the same, without a place for both.
#include "../hash.hpp"
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

// Each word is mixed with its place, and whole numbers add up to the same sum in any order.
__global__ void __launch_bounds__(threads)
    checksum_kernel(const std::uint32_t* in, std::size_t words, unsigned long long* out) {
  unsigned long long sum = 0;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x; i < words;
       i += step) {
    sum += spread(static_cast<std::uint64_t>(in[i]) << 32 ^ i);
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

}  // namespace

void checksum(const void* in, std::size_t bytes, std::uint64_t* out, cudaStream_t stream) {
  SHARDLOSS_CUDA(cudaMemsetAsync(out, 0, sizeof *out, stream));
  const std::size_t words = bytes / sizeof(std::uint32_t);
  if (words == 0) return;
  checksum_kernel<<<blocks_for(static_cast<std::int64_t>(words), threads, 4096), threads, 0,
                    stream>>>(static_cast<const std::uint32_t*>(in), words,
                              reinterpret_cast<unsigned long long*>(out));
  SHARDLOSS_LAUNCHED("checksum_kernel");
}

}  // namespace shardloss::detail::cuda
