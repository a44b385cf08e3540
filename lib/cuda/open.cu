// The beginning of a call: one look at this rank's targets, and the headers that ranks compare, at
// its end too.
//
//   denominator = sum of t c_y over ordinary rows     counted = their number
//   invalid     = number of targets outside [0, V) that are not ignored, and the lowest such row;
//                 or -1 where the row index points outside the rows, and the first such place
//   hash        = sum over rows of a mixed (row, target, row index), in any order the same
//
// Two stages, both in a fixed order: blocks fold strided rows, one block folds the blocks. Reads N
// targets and weights and, once, the V class weights.
#include "../hash.hpp"
#include "device.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

__device__ ScanShare fold_shares(ScanShare a, const ScanShare& b) {
  if (b.invalid > 0 && (a.invalid == 0 || b.invalid_row < a.invalid_row)) {
    a.invalid_row = b.invalid_row;
    a.invalid_value = b.invalid_value;
  }
  a.denominator += b.denominator;
  a.class_sum += b.class_sum;
  a.counted += b.counted;
  a.invalid += b.invalid;
  if (b.outside != 0 && (a.outside == 0 || b.outside < a.outside)) a.outside = b.outside;
  a.hash += b.hash;
  a.class_most = fmaxf(a.class_most, b.class_most);
  return a;
}

__device__ void scan_row(const OpenArguments& o, std::int64_t i, ScanShare& share) {
  if (share.outside == 0 && points_outside(o.select, i)) share.outside = i + 1;
  const std::int64_t row = caller_row(o.select, i);
  const std::int64_t named = o.select.index != nullptr ? o.select.index[i] : i;
  const float weight = real_at(o.weights, row, 1.0f);
  const bool hard = o.targets.data != nullptr;
  const std::int64_t target = hard ? integer_at(o.targets, row) : 0;
  if (o.whole) {
    share.hash +=
        spread(spread(static_cast<std::uint64_t>(i) + 1) + static_cast<std::uint64_t>(target) +
               golden_ratio * static_cast<std::uint64_t>(named));
  }
  const RowKind kind = hard ? o.objective.kind_of_id(target) : RowKind::ordinary;
  if (kind == RowKind::ignored) return;
  if (kind == RowKind::invalid) {
    ++share.invalid;
    if (share.invalid == 1) {  // a thread's rows ascend, but their numbers need not
      share.invalid_row = group_row(o.select, i);
      share.invalid_value = target;
    } else if (group_row(o.select, i) < share.invalid_row) {
      share.invalid_row = group_row(o.select, i);
      share.invalid_value = target;
    }
    return;
  }
  const float class_weight = hard && o.class_weights != nullptr ? o.class_weights[target] : 1.0f;
  share.denominator += static_cast<double>(weight) * static_cast<double>(class_weight);
  ++share.counted;
}

__global__ void __launch_bounds__(threads) scan_kernel(OpenArguments o) {
  __shared__ ScanShare shared[threads];
  ScanShare share{};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  for (std::int64_t i = begin; i < o.rows; i += step) scan_row(o, i, share);
  if (o.class_weights != nullptr) {
    for (std::int64_t v = begin; v < o.objective.vocab; v += step) {
      share.class_sum += o.class_weights[v];
      share.class_most = fmaxf(share.class_most, fabsf(o.class_weights[v]));
    }
  }
  share = block_fold<threads>(share, shared, fold_shares);
  if (threadIdx.x == 0) o.shares[blockIdx.x] = share;
}

// What the header says of the rank's targets or row index, to the host and to the end of the pass.
__device__ void report_invalid(const CallHeader& header, Mailbox* mailbox, PassScalars& scalars) {
  mailbox->invalid_row = header.invalid_row;
  mailbox->invalid_value = header.invalid_value;
  __threadfence_system();
  *const_cast<volatile std::uint32_t*>(&mailbox->invalid) =
      header.invalid < 0 ? Mailbox::invalid_row_index : Mailbox::invalid_target;
  if (header.invalid < 0) scalars.spoilt = 1;
}

__global__ void __launch_bounds__(threads) open_kernel(OpenArguments o, int shares) {
  __shared__ ScanShare shared[threads];
  const int mine = static_cast<int>(threadIdx.x);
  const ScanShare total =
      block_fold<threads>(mine < shares ? o.shares[mine] : ScanShare{}, shared, fold_shares);
  if (threadIdx.x != 0) return;
  CallHeader header = o.header;
  // An integer atomic: calls of one object on several streams each get their own number.
  header.call = 1 + atomicAdd(reinterpret_cast<unsigned long long*>(o.calls), 1ULL);
  header.targets = o.whole ? total.hash : 0;
  header.denominator = total.denominator;
  header.counted = total.counted;
  header.invalid = total.invalid;
  header.invalid_row = total.invalid_row;
  header.invalid_value = total.invalid_value;
  if (total.outside != 0) {
    header.invalid = -1;
    header.invalid_row = total.outside - 1;
    header.invalid_value = o.select.index[total.outside - 1];
  }
  for (std::byte* segment : o.exchange)
    if (segment != nullptr) *reinterpret_cast<CallHeader*>(segment) = header;

  PassScalars s{};
  s.call = header.call;
  s.denominator = total.denominator;
  s.counted = total.counted;
  s.class_sum =
      o.class_weights != nullptr ? total.class_sum : static_cast<double>(o.objective.vocab);
  s.class_most = o.class_weights != nullptr ? total.class_most : 1.0f;
  s.factor = reduction_factor(o.reduction, o.normalizer, s.denominator);
  if (o.whole && header.invalid != 0) report_invalid(header, o.mailbox, s);
  *o.scalars = s;
  *const_cast<volatile std::uint64_t*>(&o.mailbox->step) = 0;
  *const_cast<volatile std::uint64_t*>(&o.mailbox->started) = header.call;
}

__global__ void __launch_bounds__(threads)
    add_kernel(const ScanShare* shares, int count, float* total) {
  __shared__ ScanShare shared[threads];
  const int mine = static_cast<int>(threadIdx.x);
  const ScanShare sum =
      block_fold<threads>(mine < count ? shares[mine] : ScanShare{}, shared, fold_shares);
  if (threadIdx.x == 0)
    *total += sum.outside != 0 ? not_a_number() : static_cast<float>(sum.denominator);
}

__device__ const CallHeader& header_from(const AgreeArguments& a, int rank) {
  return *reinterpret_cast<const CallHeader*>(a.exchange + rank * a.segment_bytes);
}

// Everyone's words against rank 0's: each thread looks at some ranks, the lowest field wins, then
// the lowest rank.
__global__ void __launch_bounds__(threads) agree_kernel(AgreeArguments a) {
  __shared__ unsigned first_difference;
  constexpr unsigned none = ~0u;
  if (threadIdx.x == 0) first_difference = none;
  __syncthreads();
  const auto* words = reinterpret_cast<const std::uint64_t*>(&header_from(a, 0));
  for (int rank = static_cast<int>(threadIdx.x); rank < a.ranks; rank += threads) {
    const auto* other = reinterpret_cast<const std::uint64_t*>(&header_from(a, rank));
    for (int word = 0; word < agreed_words; ++word) {
      if (other[word] == words[word]) continue;
      atomicMin(&first_difference, static_cast<unsigned>(word) << 24 | static_cast<unsigned>(rank));
      break;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (first_difference != none) {
    const unsigned word = first_difference >> 24;
    const unsigned rank = first_difference & 0xffffffu;
    a.scalars->spoilt = 1;
    // What leaves the ranks' collectives unequal counts more than targets, the last word.
    const std::uint32_t known = *const_cast<volatile std::uint32_t*>(&a.mailbox->disagreement);
    if (known == 0 || (known == agreed_words && word + 1 < agreed_words)) {
      a.mailbox->other_rank = rank;
      a.mailbox->value = words[word];
      a.mailbox->other_value =
          reinterpret_cast<const std::uint64_t*>(&header_from(a, static_cast<int>(rank)))[word];
      __threadfence_system();
      *const_cast<volatile std::uint32_t*>(&a.mailbox->disagreement) = 1 + word;
    }
  }
  if (!a.sum_denominators) return;
  double denominator = 0;
  std::int64_t counted = 0;
  const CallHeader* invalid = nullptr;
  for (int rank = 0; rank < a.ranks; ++rank) {
    const CallHeader& header = header_from(a, rank);
    denominator += header.denominator;
    counted += header.counted;
    if (header.invalid == 0) continue;
    // A row index that points outside is worse than a target: it spoils the pass.
    if (invalid == nullptr || (invalid->invalid > 0 && header.invalid < 0)) invalid = &header;
  }
  a.scalars->denominator = denominator;
  a.scalars->counted = counted;
  a.scalars->factor = reduction_factor(a.reduction, a.normalizer, denominator);
  if (invalid != nullptr) report_invalid(*invalid, a.mailbox, *a.scalars);
}

__global__ void close_kernel(CloseArguments c) {
  CallHeader header = *reinterpret_cast<const CallHeader*>(c.header);
  if (*const_cast<const volatile std::uint32_t*>(&c.mailbox->aborted) != 0)
    header.verdict = given_up;
  header.chunk = closing;
  *reinterpret_cast<CallHeader*>(c.out) = header;
}

__global__ void __launch_bounds__(threads) skipped_kernel(SkippedRows o) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < o.rows;
       i += step) {
    put(o.loss, i, 0.0f);
    put(o.row_loss, i, 0.0f);
    put(o.logprob, i, 0.0f);
    put(o.lse, i, not_a_number());
    put(o.entropy, i, not_a_number());
    put(o.argmax, i, std::int64_t{-1});
    put(o.correct, i, std::uint8_t{0});
  }
}

// Returns the number of shares.
int scan(const OpenArguments& arguments, cudaStream_t stream) {
  const std::int64_t looked_at =
      arguments.class_weights != nullptr && arguments.objective.vocab > arguments.rows
          ? arguments.objective.vocab
          : arguments.rows;
  const unsigned blocks = blocks_for(looked_at, 4 * threads, most_scan_blocks);
  scan_kernel<<<blocks, threads, 0, stream>>>(arguments);
  SHARDLOSS_LAUNCHED("scan_kernel");
  return static_cast<int>(blocks);
}

}  // namespace

void open_call(const OpenArguments& arguments, cudaStream_t stream) {
  const int shares = scan(arguments, stream);
  open_kernel<<<1, threads, 0, stream>>>(arguments, shares);
  SHARDLOSS_LAUNCHED("open_kernel");
}

void add_denominator(const OpenArguments& arguments, float* total, cudaStream_t stream) {
  const int shares = scan(arguments, stream);
  add_kernel<<<1, threads, 0, stream>>>(arguments.shares, shares, total);
  SHARDLOSS_LAUNCHED("add_kernel");
}

void agree_call(const AgreeArguments& arguments, cudaStream_t stream) {
  agree_kernel<<<1, threads, 0, stream>>>(arguments);
  SHARDLOSS_LAUNCHED("agree_kernel");
}

void close_call(const CloseArguments& arguments, cudaStream_t stream) {
  close_kernel<<<1, 1, 0, stream>>>(arguments);
  SHARDLOSS_LAUNCHED("close_kernel");
}

void fill_skipped_rows(const SkippedRows& outputs, cudaStream_t stream) {
  if (outputs.rows == 0) return;
  skipped_kernel<<<blocks_for(outputs.rows, threads, 4096), threads, 0, stream>>>(outputs);
  SHARDLOSS_LAUNCHED("skipped_kernel");
}

}  // namespace shardloss::detail::cuda
