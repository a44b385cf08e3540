// From the statistics of all shards to losses, outputs and gradient coefficients, row by row, as
// objective.hpp says. Every rank combines the same numbers in rank order and gets the same bits.
// Reads P x C x 32 bytes. Each block leaves its sums and its largest magnitude; the block that
// finishes last adds them up in order.
#include "merge.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 128;

__device__ CallObjective<float> call_objective(const CombineArguments& c) {
  return {.objective = c.objective,
          .class_weights = c.class_weights,
          .class_sum = c.scalars->class_sum,
          .class_most = c.scalars->class_most,
          .reduction = c.scalars->factor.value};
}

__device__ CombinedRow<float> combine_statistics(const CombineArguments& c, std::int64_t i) {
  const RowStatistics<float> s =
      merge_statistics(c.ranks, [&](int rank) -> const RowStatistics<float>& {
        const std::byte* segment = c.exchange + rank * c.segment_bytes + sizeof(CallHeader);
        return reinterpret_cast<const RowStatistics<float>*>(segment)[i];
      });
  return {saved_of<float>(s), s.target_logit, s.weighted_sum, s.argmax};
}

__device__ void write_outputs(const CombineArguments& c, std::int64_t i,
                              const RowOutputs<float>& of) {
  const std::int64_t own = i - c.own_begin;
  if (own < 0 || own >= c.own_rows) return;
  const std::int64_t at = caller_row(c.select, c.own_first + own);
  put(c.loss, at, of.loss);
  put(c.row_loss, at, of.loss);
  put(c.lse, at, of.lse);
  put(c.logprob, at, of.target_logprob);
  put(c.entropy, at, of.entropy);
  put(c.argmax, at, of.argmax);
  put(c.correct, at, of.correct);
}

__device__ CombineShare fold_shares(CombineShare a, const CombineShare& b) {
  a.cross_entropy += b.cross_entropy;
  a.z_loss += b.z_loss;
  a.magnitude = fmax(a.magnitude, b.magnitude);
  return a;
}

__device__ CombineShare combine_one(const CombineArguments& c, std::int64_t i) {
  const CallObjective<float> call = call_objective(c);
  const RowInput<float> input = c.inputs[i];
  const RowKind kind = c.objective.kind_of(input.target);
  SavedRow<float> saved;
  RowLoss loss{};
  if (c.read != nullptr) {
    saved = c.read[i];
  } else {
    const CombinedRow<float> row = combine_statistics(c, i);
    loss = loss_of(call, kind, input, row);
    write_outputs(c, i, outputs_of(kind, input, row, loss));
    saved = row.saved;
    if (c.write != nullptr) c.write[i] = saved;
  }
  CombineShare share{loss.cross_entropy, loss.z_loss, 0.0};
  if (c.coefficients != nullptr) {
    const RowCoefficients<float> k = coefficients_of(call, kind, input, saved);
    c.coefficients[i] = k;
    if (c.scales_gradients) {
      const double log_vocab = log(static_cast<double>(c.objective.vocab));
      share.magnitude = magnitude_of(call, k, log_vocab);
    }
  }
  return share;
}

__device__ ChunkScale chunk_scale(const CombineArguments& c, double magnitude) {
  if (!c.scales_gradients) return {1.0f, 1.0f};
  const int power = chunk_power<float>(magnitude, DType::float16);
  return {ldexpf(1.0f, power), ldexpf(1.0f, -power)};
}

// Whether this block is the last of the grid to have written its share, which it then sees all of.
__device__ bool arrives_last(std::uint32_t* arrived) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

__global__ void __launch_bounds__(threads) combine_kernel(CombineArguments c) {
  __shared__ CombineShare shared[threads];
  CombineShare share{};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < c.rows;
       i += step)
    share = fold_shares(share, combine_one(c, i));
  share = block_fold<threads>(share, shared, fold_shares);
  if (threadIdx.x == 0) c.shares[blockIdx.x] = share;
  if (!arrives_last(&c.scalars->arrived)) return;

  share = {};
  for (unsigned i = threadIdx.x; i < gridDim.x; i += threads) {
    // Past the L1, which knows nothing of other multiprocessors' writes.
    const CombineShare* other = c.shares + i;
    share = fold_shares(
        share, {__ldcg(&other->cross_entropy), __ldcg(&other->z_loss), __ldcg(&other->magnitude)});
  }
  share = block_fold<threads>(share, shared, fold_shares);
  if (threadIdx.x != 0) return;
  c.scalars->arrived = 0;
  c.scalars->cross_entropy += share.cross_entropy;
  c.scalars->z_loss += share.z_loss;
  c.scalars->scale[c.slot] = chunk_scale(c, share.magnitude);
  *const_cast<volatile std::uint64_t*>(&c.mailbox->step) = c.chunk;
}

}  // namespace

void combine_rows(const CombineArguments& arguments, cudaStream_t stream) {
  if (arguments.rows == 0) return;
  combine_kernel<<<blocks_for(arguments.rows, threads, most_combine_blocks), threads, 0, stream>>>(
      arguments);
  SHARDLOSS_LAUNCHED("combine_kernel");
}

}  // namespace shardloss::detail::cuda
