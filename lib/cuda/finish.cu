// The end of a call: the loss and its parts from the running sums, counts, and the mailbox.
// Where the ranks disagreed, or the host gave the call up, every loss becomes NaN.
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

__device__ bool spoilt(const FinishArguments& f) {
  return f.scalars->spoilt != 0 || *const_cast<volatile std::uint32_t*>(&f.mailbox->aborted) != 0;
}

__device__ void put_sum(const FinishArguments& f, float* out, double sum, bool nan) {
  if (out == nullptr) return;
  *out = nan ? not_a_number() : static_cast<float>(f.scalars->factor.reduce(sum));
}

__global__ void __launch_bounds__(threads) finish_kernel(FinishArguments f) {
  const PassScalars& s = *f.scalars;
  const bool nan = spoilt(f);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (f.reduced) put_sum(f, f.loss.data, s.cross_entropy + s.z_loss, nan);
    put_sum(f, f.cross_entropy, s.cross_entropy, nan);
    put_sum(f, f.z_loss, s.z_loss, nan);
    if (f.counted != nullptr) *f.counted = s.counted;
  }
  if (!nan) return;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < f.rows;
       i += step) {
    if (!f.reduced) put(f.loss, i, not_a_number());
    put(f.row_loss, i, not_a_number());
  }
}

__global__ void report_kernel(const PassScalars* scalars, Mailbox* mailbox) {
  __threadfence_system();
  *const_cast<volatile std::uint64_t*>(&mailbox->finished) = scalars->call;
}

}  // namespace

void finish_call(const FinishArguments& arguments, cudaStream_t stream) {
  const bool per_row = arguments.row_loss.data != nullptr || !arguments.reduced;
  const unsigned blocks = per_row ? blocks_for(arguments.rows, threads, 64) : 1;
  finish_kernel<<<blocks, threads, 0, stream>>>(arguments);
  SHARDLOSS_LAUNCHED("finish_kernel");
}

void report_finished(const PassScalars* scalars, Mailbox* mailbox, cudaStream_t stream) {
  report_kernel<<<1, 1, 0, stream>>>(scalars, mailbox);
  SHARDLOSS_LAUNCHED("report_kernel");
}

}  // namespace shardloss::detail::cuda
