// What a shard knows of each row of a chunk, from one read of its logits U [C, columns]:
//
//   max = max z      sum_exp = sum exp(z - max)      target_logit = z_y where y is in the shard
//   centered_sum = sum exp(z - max) (z - max)        weighted_sum = sum z, c z or c q' z
//   target_mass = sum c q'                           argmax = the first column of the maximum
//
// Bytes: C columns elements read, C x 32 written. A block takes a row, or a part of it where there
// are few rows, or two rows where they share class weights. A thread keeps a running maximum and
// sums relative to it: a batch of 16-byte vectors in flight, its maximum, one rescaling, then one
// exponential an element.
//
// exp(z - M) is 2^(z log2 e - fl(M log2 e)): one rounding where a product and a difference would
// have two, and the rounding of M log2 e, the same for all elements, is taken out at the end.
#include <algorithm>
#include <climits>
#include <cstdint>

#include "logits.cuh"
#include "merge.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

// What a thread has seen of a row. Exponentials are relative to 2^offset_of(max); where that is
// far, to exp(max).
struct RowState {
  float max = -infinity();
  float sum = 0.0f;
  float centered = 0.0f;  // of their exponents, base 2
  float weighted = 0.0f;
  float mass = 0.0f;
  int batch = INT_MAX;   // the first column of the batch with the first maximum
  int column = INT_MAX;  // of the first maximum, once states are merged
};

// A batch's share of the sums. `from`: offset_of(max); where the maximum is `far`, max. A z of
// -inf, whose exponential is 0, must not make a NaN of them.
template <unsigned features, bool far, int count>
__device__ void add_terms(const float (&z)[count], const float (&w)[count], float from, float& sum,
                          float& centered, float& weighted) {
  sum = centered = weighted = 0.0f;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float x = far ? (z[i] - from) * log2_e : fmaf(z[i], log2_e, -from);
    const float e = exp2_fast(x);
    sum += e;
    if constexpr ((features & (with_sums | with_soft)) != 0)
      centered = fmaf(e, fmaxf(x, lowest), centered);
    if constexpr ((features & (with_soft | with_classes)) != 0)
      weighted = w[i] == 0.0f ? weighted : fmaf(w[i], z[i], weighted);
  }
}

// Takes a batch in: `present` vectors of it are there, the others hold z = -inf and w = 0.
template <unsigned features, int width, int count>
__device__ void add(RowState& s, const float (&z)[count], const float (&w)[count], int column,
                    int present) {
  constexpr bool sums = (features & (with_sums | with_soft)) != 0;
  constexpr bool weights = (features & (with_soft | with_classes)) != 0;
  float top = z[0];
#pragma unroll
  for (int i = 1; i < count; ++i) top = fmaxf(top, z[i]);
  if constexpr ((features & with_argmax) != 0) s.batch = top > s.max ? column : s.batch;
  const float before = s.max;
  s.max = fmaxf(s.max, top);
  float sum, centered, weighted;
  float shift;  // -inf as long as nothing above -inf has been seen
  if (is_far(s.max)) {
    const float from = s.max == -infinity() ? 0.0f : s.max;
    shift = (before - from) * log2_e;
    add_terms<features, true>(z, w, from, sum, centered, weighted);
  } else {
    const float from = offset_of(s.max);
    shift = offset_of(before) - from;
    add_terms<features, false>(z, w, from, sum, centered, weighted);
  }
  const float factor = exp2_fast(shift);
  if constexpr ((features & with_soft) != 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) s.mass += w[i];
  }
  if constexpr (weights) s.weighted += weighted;
  if constexpr (sums && !weights) {
#pragma unroll
    for (int j = 0; j < count / width; ++j) {
      float part = 0.0f;
#pragma unroll
      for (int i = 0; i < width; ++i) part += z[j * width + i];
      s.weighted += j < present ? part : 0.0f;
    }
  }
  if constexpr (sums)
    s.centered = fmaf(factor, fmaf(s.sum, fmaxf(shift, lowest), s.centered), centered);
  s.sum = fmaf(s.sum, factor, sum);
}

// The rows of a block, by pointers that stay inside the chunk.
template <class T, int row_count>
struct Rows {
  const T* logits[row_count];
  std::int64_t soft[row_count];
};

// The first `present` of `vectors` vectors of each row, `threads` vectors apart, from `column`; or
// single elements (width 1). All loads are in flight before the first is used.
template <class T, unsigned features, int row_count, int width, int vectors>
__device__ void add_vectors(RowState (&state)[row_count], const Rows<T, row_count>& rows,
                            const LogitsArguments& on, const LogitScale& scale, int column,
                            int present) {
  constexpr int count = width * vectors;
  constexpr int step = width * threads;
  uint4 raw[row_count][vectors] = {};
  if constexpr (width > 1) {
#pragma unroll
    for (int r = 0; r < row_count; ++r)
#pragma unroll
      for (int j = 0; j < vectors; ++j)
        if (j < present) raw[r][j] = load16(rows.logits[r] + column + j * step);
  }
  float w[count] = {};
  if constexpr ((features & with_classes) != 0) {
#pragma unroll
    for (int j = 0; j < vectors; ++j)
      if (j < present)
        load_floats(on.class_weights + column + j * step,
                    reinterpret_cast<float(&)[width]>(w[j * width]));
  }
#pragma unroll
  for (int r = 0; r < row_count; ++r) {
    float z[count];
#pragma unroll
    for (int j = 0; j < vectors; ++j) {
      auto& part = reinterpret_cast<float(&)[width]>(z[j * width]);
      if constexpr (width == 1)
        part[0] = to_float(rows.logits[r][column]);
      else
        unpack<T>(raw[r][j], part);
      if constexpr ((features & with_soft) != 0) {
        if (j < present)
          load_soft(on, rows.soft[r], column + j * step,
                    reinterpret_cast<float(&)[width]>(w[j * width]));
      }
      float slope[width];
      cap_logits<T, (features & with_cap) != 0>(part, scale, slope);
#pragma unroll
      for (int i = 0; i < width; ++i)
        if (j >= present) part[i] = -infinity();
    }
    add<features, width>(state[r], z, w, column, present);
  }
}

// The first column of a thread's batch whose logit is `max`: one of them is. Batches keep only
// where they begin: most maxima are soon outdone.
template <class T, unsigned features, int vectors>
__device__ int column_of(float max, int batch, const T* logits, int columns,
                         const LogitScale& scale) {
  constexpr int width = lanes<T>;
  const int whole = columns / width * width;
  const int last = batch < whole ? whole : columns;
  const int size = batch < whole ? width : 1;
  for (int j = 0; j < vectors; ++j) {
    const int first = batch + j * threads * size;
    for (int i = first; i < min(first + size, last); ++i) {
      float slope;
      if (logit<T, (features & with_cap) != 0>(to_float(logits[i]), scale, slope) == max) return i;
    }
  }
  return batch;  // cannot be: the same operations give the same logit
}

struct BlockScratch {
  float max[warps];
  float sums[4][warps];
  int column[warps];
};

// The states of a block's threads into one, in thread 0; relative to the exact maximum. Its column
// comes from find(max, batch) of the threads that have the maximum, where it is `wanted`.
template <unsigned features, class Find>
__device__ RowState merge_block(RowState s, BlockScratch& shared, bool wanted, Find&& find) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool leader = threadIdx.x % 32 == 0;
  const float own_max = warp_max(s.max);
  if (leader) shared.max[warp] = own_max;
  __syncthreads();
  float max = shared.max[0];
  for (int i = 1; i < warps; ++i) max = fmaxf(max, shared.max[i]);

  const float rounding = rounding_of(s.max);
  const float shift = s.max == max ? 0.0f : (s.max - max) * log2_e;
  const float factor = exp2_fast(shift - rounding);
  constexpr bool sums = (features & (with_sums | with_soft)) != 0;
  if constexpr (sums)
    s.centered = factor * fmaf(s.sum, fmaxf(shift - rounding, lowest), s.centered);
  s.sum *= factor;
  float* const values[4] = {&s.sum, &s.centered, &s.weighted, &s.mass};
  constexpr int used = (features & with_soft) != 0 ? 4 : (sums ? 3 : 1);
#pragma unroll
  for (int k = 0; k < used; ++k) {
    const float sum = warp_sum(*values[k]);
    if (leader) shared.sums[k][warp] = sum;
  }
  if constexpr ((features & with_argmax) != 0) {
    const bool has_max = wanted && s.max == max && s.batch != INT_MAX;
    const int column = __reduce_min_sync(~0u, has_max ? find(max, s.batch) : INT_MAX);
    if (leader) shared.column[warp] = column;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    s.max = max;
#pragma unroll
    for (int k = 0; k < used; ++k) {
      *values[k] = 0.0f;
      for (int i = 0; i < warps; ++i) *values[k] += shared.sums[k][i];
    }
    if constexpr ((features & with_argmax) != 0) {
      for (int i = 0; i < warps; ++i) s.column = min(s.column, shared.column[i]);
    }
  }
  __syncthreads();
  return s;
}

// Thread 0 writes what the block knows. `begin`: the first column that the block looked at.
template <class T, unsigned features>
__device__ void write_row(const StatisticsArguments& a, const LogitScale& scale, const RowState& s,
                          std::int64_t row, const T* logits, int begin, bool owns_target,
                          RowStatistics<float>& out) {
  const Objective<float>& o = a.on.objective;
  RowStatistics<float> result{};
  result.max = s.max;
  result.sum_exp = s.sum;
  result.centered_sum = s.centered * ln_2;
  result.weighted_sum = s.weighted;
  result.target_mass = s.mass;
  result.argmax = -1;
  if (a.argmax && begin < o.columns)
    result.argmax = o.first + (s.column == INT_MAX ? begin : s.column);
  if constexpr ((features & with_soft) == 0) {
    const std::int64_t column = o.column_of(a.inputs[row].target);
    float slope;
    if (owns_target && column >= 0)
      result.target_logit =
          logit<T, (features & with_cap) != 0>(to_float(logits[column]), scale, slope);
  }
  out = result;
}

// How a kernel of given features is cut: the plainest hides memory behind many blocks, the others
// behind what each thread has in flight, and rows that share class weights go together.
struct Cut {
  int rows;     // of a block
  int vectors;  // of a thread's batch
  int blocks;   // of a multiprocessor
};
constexpr Cut cut_of(unsigned features) {
  if ((features & with_soft) != 0) return {1, 2, 4};
  if ((features & with_classes) != 0) return {2, 2, 3};
  if ((features & (with_sums | with_cap)) != 0) return {1, 4, 4};
  return {1, 2, 8};
}
template <unsigned features>
constexpr Cut cut = cut_of(features);

template <class T, unsigned features>
__global__ void __launch_bounds__(threads, cut<features>.blocks)
    statistics_kernel(StatisticsArguments a, LogitScale scale, int splits) {
  constexpr int width = lanes<T>;
  constexpr int row_count = cut<features>.rows;
  constexpr int vectors = cut<features>.vectors;
  __shared__ BlockScratch shared;
  if (blockIdx.x == 0 && threadIdx.x == 0) a.header->chunk = a.chunk;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x / splits) * row_count;
  const int split = static_cast<int>(blockIdx.x % splits);
  if (first_row >= a.on.rows) return;

  Rows<T, row_count> rows;
  RowState state[row_count];
#pragma unroll
  for (int r = 0; r < row_count; ++r) {
    const std::int64_t row = min(first_row + r, a.on.rows - 1);
    rows.logits[r] = static_cast<const T*>(a.on.logits.data) + row * a.on.logits.row_stride;
    rows.soft[r] = (features & with_soft) != 0 ? a.inputs[row].row : 0;
  }

  const int columns = static_cast<int>(a.on.objective.columns);
  const int whole = columns / width;
  const int begin = static_cast<int>(static_cast<std::int64_t>(whole) * split / splits);
  const int end = static_cast<int>(static_cast<std::int64_t>(whole) * (split + 1) / splits);
  // Unsigned: begin + strides past the last vector of the largest vocabulary stay below 2^32.
  unsigned v = static_cast<unsigned>(begin) + threadIdx.x;
  for (; v + (vectors - 1) * threads < static_cast<unsigned>(end); v += vectors * threads)
    add_vectors<T, features, row_count, width, vectors>(state, rows, a.on, scale,
                                                        static_cast<int>(v * width), vectors);
  if (v < static_cast<unsigned>(end))
    add_vectors<T, features, row_count, width, vectors>(
        state, rows, a.on, scale, static_cast<int>(v * width),
        static_cast<int>((static_cast<unsigned>(end) - v + threads - 1) / threads));
  const int tail = whole * width + static_cast<int>(threadIdx.x);
  if (split == splits - 1 && tail < columns)
    add_vectors<T, features, row_count, 1, 1>(state, rows, a.on, scale, tail, 1);

#pragma unroll
  for (int r = 0; r < row_count; ++r) {
    const RowState merged =
        merge_block<features>(state[r], shared, a.argmax, [&](float max, int batch) {
          return column_of<T, features, vectors>(max, batch, rows.logits[r], columns, scale);
        });
    const std::int64_t row = first_row + r;
    if (threadIdx.x != 0 || row >= a.on.rows) continue;
    RowStatistics<float>& out = splits == 1 ? a.out[row] : a.partials[row * splits + split];
    write_row<T, features>(a, scale, merged, row, rows.logits[r], begin * width, split == 0, out);
  }
}

__global__ void __launch_bounds__(threads)
    merge_kernel(const RowStatistics<float>* partials, int splits, std::int64_t rows,
                 RowStatistics<float>* out) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (row >= rows) return;
  out[row] = merge_statistics(
      splits, [&](int i) -> const RowStatistics<float>& { return partials[row * splits + i]; });
}

// Few rows leave multiprocessors idle: then blocks share a row, each with at least two batches.
int splits_of(const StatisticsArguments& a, std::int64_t groups, std::int64_t batch) {
  // Two rounds of blocks of most kernels, one of the plainest, or nearly.
  const std::int64_t wanted = std::int64_t{7} * a.multiprocessors;
  if (groups == 0 || groups >= wanted) return 1;
  const std::int64_t most = std::max<std::int64_t>(1, a.on.objective.columns / (2 * batch));
  return static_cast<int>(
      std::min({(wanted + groups - 1) / groups, most, most_split_statistics / a.on.rows}));
}

template <class T, unsigned features>
void launch(const StatisticsArguments& a, cudaStream_t stream) {
  constexpr int row_count = cut<features>.rows;
  const std::int64_t groups = (a.on.rows + row_count - 1) / row_count;
  const int splits = std::max(1, splits_of(a, groups, cut<features>.vectors * threads * lanes<T>));
  const auto blocks = static_cast<unsigned>(std::max<std::int64_t>(1, groups * splits));
  statistics_kernel<T, features>
      <<<blocks, threads, 0, stream>>>(a, scale_of(a.on.objective), splits);
  SHARDLOSS_LAUNCHED("statistics_kernel");
  if (splits == 1) return;
  merge_kernel<<<blocks_for(a.on.rows, threads), threads, 0, stream>>>(a.partials, splits,
                                                                       a.on.rows, a.out);
  SHARDLOSS_LAUNCHED("merge_kernel");
}

// Which kernel: the plainest that does what is asked for.
template <class T>
void choose(const StatisticsArguments& a, cudaStream_t stream) {
  const auto run = [&]<unsigned features>(std::integral_constant<unsigned, features>) {
    with_or_without_cap<features>(
        a.on.objective,
        [&]<unsigned all>(std::integral_constant<unsigned, all>) { launch<T, all>(a, stream); });
  };
  if (a.on.soft_targets.data != nullptr)
    run(std::integral_constant<unsigned, with_argmax | with_sums | with_soft>{});
  else if (a.on.class_weights != nullptr)
    run(std::integral_constant<unsigned, with_argmax | with_sums | with_classes>{});
  else if (a.sums)
    run(std::integral_constant<unsigned, with_argmax | with_sums>{});
  else if (a.argmax)
    run(std::integral_constant<unsigned, with_argmax>{});
  else
    run(std::integral_constant<unsigned, 0>{});
}

}  // namespace

void row_statistics(const StatisticsArguments& arguments, cudaStream_t stream) {
  with_element(arguments.on.logits.dtype,
               [&]<class T>(ElementType<T>) { choose<T>(arguments, stream); });
}

}  // namespace shardloss::detail::cuda
