// From the statistics of all shards to losses, outputs and gradient coefficients, row by row:
//
//   lse = M + log_sum       nll = log_sum + (M - z_y)
//   ce  = (1 - a) c_y nll + a / V (lse sum c - sum c z)     soft targets: lse sum c q' - sum c q' z
//   row loss = t (ce + k lse^2)
//
// and the coefficients of coefficients.cuh. Every rank combines the same numbers in rank order and
// gets the same bits. Reads P x C x 32 bytes. Each block leaves its sums and its largest magnitude;
// the block that finishes last adds them up in order. A row's scalars are double: they cost
// nothing, and large terms cancel in them.
#include "coefficients.cuh"
#include "merge.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 128;

struct CombinedRow {
  RowKind kind;
  SavedRow<float> saved;
  float target_logit;
  float weighted_sum;
  std::int64_t argmax;
  double cross_entropy;  // t ce
  double z_loss;         // t k lse^2
};

__device__ void combine_statistics(const CombineArguments& c, std::int64_t i, CombinedRow& row) {
  const RowStatistics<float> s =
      merge_statistics(c.ranks, [&](int rank) -> const RowStatistics<float>& {
        const std::byte* segment = c.exchange + rank * c.segment_bytes + sizeof(CallHeader);
        return reinterpret_cast<const RowStatistics<float>*>(segment)[i];
      });
  row.saved = saved_of(s);
  row.target_logit = s.target_logit;
  row.weighted_sum = s.weighted_sum;
  row.argmax = s.argmax;
}

__device__ double target_nll(const CombinedRow& row) {
  return row.saved.log_sum + (static_cast<double>(row.saved.max) - row.target_logit);
}

// A weight of 0 keeps out an infinite loss; NaN is not hidden.
__device__ double weighed(double weight, double loss) {
  return weight == 0.0 && isinf(loss) ? 0.0 : weight * loss;
}

__device__ void set_loss(const CombineArguments& c, const RowInput<float>& input,
                         CombinedRow& row) {
  row.cross_entropy = row.kind == RowKind::invalid ? not_a_number() : 0.0;
  row.z_loss = 0.0;
  if (row.kind != RowKind::ordinary) return;
  const double lse = static_cast<double>(row.saved.max) + row.saved.log_sum;
  const double t = input.weight;
  double ce = 0.0;
  if (c.soft_targets) {
    ce = lse * row.saved.target_mass - row.weighted_sum;
  } else {
    const double a = c.objective.smoothing;
    // A coefficient of 0 keeps out what it multiplies, an infinite term too.
    const double hard = (1.0 - a) * class_weight(c, input.target);
    if (hard != 0.0) ce = hard * target_nll(row);
    if (a != 0.0)
      ce += a * (lse * c.scalars->class_sum - row.weighted_sum) /
            static_cast<double>(c.objective.vocab);
  }
  row.cross_entropy = weighed(t, ce);
  const double k = c.objective.z_loss;
  if (k != 0.0) row.z_loss = weighed(t, k * lse * lse);
}

__device__ void write_outputs(const CombineArguments& c, std::int64_t i, const CombinedRow& row,
                              const RowInput<float>& input) {
  const std::int64_t own = i - c.own_begin;
  if (own < 0 || own >= c.own_rows) return;
  const std::int64_t at = caller_row(c.select, c.own_first + own);
  const auto loss = static_cast<float>(row.cross_entropy + row.z_loss);
  const bool ordinary = row.kind == RowKind::ordinary;
  put(c.loss, at, loss);
  put(c.row_loss, at, loss);
  put(c.lse, at, static_cast<float>(static_cast<double>(row.saved.max) + row.saved.log_sum));
  const float logprob = ordinary ? -static_cast<float>(target_nll(row)) : 0.0f;
  put(c.logprob, at, row.kind == RowKind::invalid ? not_a_number() : logprob);
  put(c.entropy, at, row.saved.log_sum - row.saved.centered_mean);
  put(c.argmax, at, row.argmax);
  put(c.correct, at, static_cast<std::uint8_t>(ordinary && row.argmax == input.target));
}

// The largest |du| that the row's coefficients allow, about; NaN and infinity do not count.
__device__ float magnitude_of(const CombineArguments& c, const RowCoefficients<float>& row) {
  const float log_vocab = logf(static_cast<float>(c.objective.vocab));
  const float magnitude =
      fabsf(c.objective.scale) * (fabsf(row.a) + fabsf(row.b) +
                                  fabsf(row.c) * c.scalars->class_max + fabsf(row.g) * log_vocab);
  return isfinite(magnitude) ? magnitude : 0.0f;
}

__device__ CombineShare fold_shares(CombineShare a, const CombineShare& b) {
  a.cross_entropy += b.cross_entropy;
  a.z_loss += b.z_loss;
  a.magnitude = fmaxf(a.magnitude, b.magnitude);
  return a;
}

__device__ CombineShare combine_one(const CombineArguments& c, std::int64_t i) {
  const RowInput<float> input = c.inputs[i];
  CombinedRow row{};
  row.kind = kind_of(c, input.target);
  if (c.read != nullptr) {
    row.saved = c.read[i];
  } else {
    combine_statistics(c, i, row);
    set_loss(c, input, row);
    write_outputs(c, i, row, input);
    if (c.write != nullptr) c.write[i] = row.saved;
  }
  CombineShare share{row.cross_entropy, row.z_loss, 0.0f};
  if (c.coefficients != nullptr) {
    const RowCoefficients<float> k = coefficients_of(c, *c.scalars, row.kind, row.saved, input);
    c.coefficients[i] = k;
    if (c.scales_gradients) share.magnitude = magnitude_of(c, k);
  }
  return share;
}

// A power of two that brings `magnitude` near 2^10: gradients in float16 then use the middle of
// that type's range. Its inverse is a normal number too.
__device__ ChunkScale chunk_scale(float magnitude) {
  if (magnitude == 0.0f) return {1.0f, 1.0f};
  const int power = min(max(ilogbf(magnitude) - 10, -120), 120);
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
  c.scalars->scale[c.slot] = chunk_scale(share.magnitude);
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
