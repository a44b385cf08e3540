// Statistics, coefficients and gradient of each row of a chunk from one read and one write of its
// logits, for the plain objective on one rank, where nothing has to be asked of others first:
//
//   max = max z     sum_exp = sum exp(z - max)     z_y     ->     A, B of objective.hpp
//   du_v = A exp(z_v - lse) + B [v == y], in place
//
// A cluster of blocks holds a row in shared memory, each block a part, and sends the others the
// statistics of its part. Bytes: C columns elements read and as many written, two thirds of what
// statistics.cu and dlogits.cu move. Memory is what the kernel should wait for, so an element takes
// as little else as it can: maxima are of packed pairs, and the sum comes when the part's maximum
// is known, which leaves one exponential there and one for the gradient. A thread copies, looks at
// and writes the same vectors.
//
// Rows go backwards: the product wrote the last ones last, so those are still in the cache, and the
// products that follow begin with the rows written last.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <cuda/ptx>

#include "../workspace.hpp"
#include "row_gradient.cuh"

namespace shardloss::detail::cuda {
namespace {

using Element = __nv_bfloat16;
constexpr int width = lanes<Element>;
constexpr int threads = 256;
constexpr int most_blocks = 8;    // of a cluster, on every device that has clusters
constexpr int wanted_blocks = 6;  // of a multiprocessor: some copy, some compute, some write

#if __CUDA_ARCH__ >= 900  // clusters

constexpr int warps = threads / 32;

// The vector at the end of a row that columns fill in part; behind them stands -inf, which adds
// nothing and has no gradient.
__device__ uint4 last_vector(const Element* from, int columns) {
  float u[width];
#pragma unroll
  for (int i = 0; i < width; ++i) u[i] = i < columns ? to_float(from[i]) : -infinity();
  return pack<Element>(u);
}

__device__ __nv_bfloat162 max_of_pairs(__nv_bfloat162 top, const uint4& raw) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    top = __hmax2(top, *reinterpret_cast<const __nv_bfloat162*>(&words[i]));
  return top;
}

template <bool scaled>
__device__ void logits_of(const uint4& raw, float scale, float (&z)[width]) {
  unpack<Element>(raw, z);
  if constexpr (scaled) {
#pragma unroll
    for (int i = 0; i < width; ++i) z[i] *= scale;
  }
}

// The part of a row that a block holds; this thread's vectors are threadIdx.x, + threads, ...
struct Held {
  uint4* vectors;
  int count;
  template <class Body>
  __device__ void each(Body&& body) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) body(i);
  }
};

// sum exp(z - max) of a block's part, for all its threads.
template <bool scaled>
__device__ float sum_exp(const Held& held, float scale, float max, float (&shared)[warps]) {
  float sum = 0.0f;
  if (is_far(max)) {
    const float from = max == -infinity() ? 0.0f : max;
    held.each([&](int i) {
      float z[width];
      logits_of<scaled>(held.vectors[i], scale, z);
      for (int j = 0; j < width; ++j) sum += exp2_fast((z[j] - from) * log2_e);
    });
  } else {
    const float from = offset_of(max);
    held.each([&](int i) {
      float z[width];
      logits_of<scaled>(held.vectors[i], scale, z);
      float e[width];
#pragma unroll
      for (int j = 0; j < width; ++j) e[j] = exp2_fast(fmaf(z[j], log2_e, -from));
      sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
    });
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int i = 0; i < warps; ++i) sum += shared[i];
  return sum * exp2_fast(-rounding_of(max));
}

// A small record, by the first threads of a block.
template <class Record>
__device__ void copy_async(Record& to, const Record* from) {
  constexpr int words = sizeof(Record) / sizeof(std::uint64_t);
  static_assert(sizeof(Record) % sizeof(std::uint64_t) == 0 && words <= threads);
  if (threadIdx.x < words)
    __pipeline_memcpy_async(reinterpret_cast<std::uint64_t*>(&to) + threadIdx.x,
                            reinterpret_cast<const std::uint64_t*>(from) + threadIdx.x,
                            sizeof(std::uint64_t));
}

// What a block knows of its part of a row.
struct alignas(16) PartStatistics {
  float max, sum_exp, target_logit, unused;
};

// Where the blocks of a cluster send each other what they know: 16 bytes from each into each. No
// barrier has to make memory visible, which is what takes long: the stores themselves are counted.
struct Mail {
  PartStatistics parts[most_blocks];
  std::uint64_t arrived;

  // By one thread, before the block tells the cluster that it has.
  __device__ void open() {
    ::cuda::ptx::mbarrier_init(&arrived, 1);
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }

  // By one thread, before or after any of it has come.
  __device__ void expect(int blocks) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(
        ::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared, &arrived,
        static_cast<std::uint32_t>(blocks * sizeof(PartStatistics)));
  }

  __device__ void send(const PartStatistics& part, int from, int to) {
    const auto cluster = cooperative_groups::this_cluster();
    const auto rank = static_cast<unsigned>(to);
    const float words[4] = {part.max, part.sum_exp, part.target_logit, part.unused};
    ::cuda::ptx::st_async(cluster.map_shared_rank(&parts[from].max, rank), words,
                          cluster.map_shared_rank(&arrived, rank));
  }

  __device__ void wait() {
    while (!::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire,
                                                  ::cuda::ptx::scope_cluster, &arrived, 0)) {
    }
  }
};

// What the parts of a row make together, by one warp, lane i of which has part i.
__device__ RowStatistics<float> merge_parts(const PartStatistics& part) {
  RowStatistics<float> row{};
  row.max = warp_max(part.max);
  const float shift = part.max == row.max ? 0.0f : (part.max - row.max) * log2_e;
  row.sum_exp = warp_sum(exp2_fast(shift) * part.sum_exp);
  row.target_logit = warp_sum(part.target_logit);
  row.argmax = -1;
  return row;
}

// A logarithm in float is enough here: the gradient is rounded to bfloat16.
__device__ SavedRow<float> saved_by(const RowStatistics<float>& s) {
  return {s.max, s.max == -infinity() ? not_a_number() : logf(s.sum_exp), 0.0f, 0.0f};
}

template <bool scaled>
__device__ void write_gradient(const Held& held, Element* out, int first, const RowTerms& t,
                               const LogitScale& scale) {
  held.each([&](int i) {
    const int column = first + i * width;
    float u[width];
    if (t.far || !isfinite(t.a)) {  // what dlogits does
      const float w[width] = {};
      unpack<Element>(held.vectors[i], u);
      gradient<Element, 0>(u, w, t, scale, column);
    } else {
      logits_of<scaled>(held.vectors[i], scale.scale, u);
      const auto target = static_cast<unsigned>(t.column - column);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float p = t.a * exp2_fast(fmaf(u[j], log2_e, -t.offset));
        u[j] = target == j && t.column >= 0 && u[j] != -infinity() ? p + t.b : p;
      }
    }
    store16(out + i * width, pack<Element>(u));
  });
}

template <bool scaled>
__device__ void fuse_row(const FusedArguments& a, const LogitScale& scale) {
  namespace ptx = ::cuda::ptx;
  extern __shared__ uint4 vectors[];
  __shared__ float shared[2][warps];
  __shared__ RowInput<float> input;
  __shared__ PassScalars scalars;  // what coefficients read of them
  __shared__ Mail mail;
  __shared__ RowTerms terms;
  const auto thread = static_cast<int>(threadIdx.x);

  const auto blocks = static_cast<int>(ptx::get_sreg_cluster_nctarank());
  const auto block = static_cast<int>(ptx::get_sreg_cluster_ctarank());
  const std::int64_t row = (gridDim.x - 1 - blockIdx.x) / static_cast<unsigned>(blocks);
  if (thread == 0) mail.open();
  ptx::barrier_cluster_arrive(ptx::sem_relaxed);

  const auto columns = static_cast<int>(a.combine.objective.columns);
  const int all = padded(columns) / width;
  const int begin = all * block / blocks;
  const Held held{vectors, all * (block + 1) / blocks - begin};
  const int first = begin * width;  // column
  auto* const logits = static_cast<Element*>(a.logits.data) + row * a.logits.row_stride + first;

  held.each([&](int i) {
    if (first + (i + 1) * width <= columns)
      __pipeline_memcpy_async(vectors + i, logits + i * width, sizeof(uint4));
    else
      vectors[i] = last_vector(logits + i * width, columns - (first + i * width));
  });
  // What lane 0 needs later comes along: from global memory it would hold up the block then.
  copy_async(input, a.combine.inputs + row);
  copy_async(scalars.factor.value, &a.combine.scalars->factor.value);
  copy_async(scalars.class_sum, &a.combine.scalars->class_sum);
  __pipeline_commit();
  __pipeline_wait_prior(0);

  __nv_bfloat162 top = __float2bfloat162_rn(-infinity());
  held.each([&](int i) { top = max_of_pairs(top, vectors[i]); });
  float max = warp_max(to_float(__hmax(top.x, top.y)));
  if (thread % 32 == 0) shared[0][thread / 32] = max;
  __syncthreads();
  if (thread == 0) mail.expect(blocks);
  for (int i = 0; i < warps; ++i) max = fmaxf(max, shared[0][i]);
  if constexpr (scaled) max *= scale.scale;
  const float sum = sum_exp<scaled>(held, scale.scale, max, shared[1]);

  ptx::barrier_cluster_wait();
  if (thread < 32) {
    PartStatistics part{max, sum, 0.0f, 0.0f};
    const std::int64_t id = a.combine.objective.first + first;  // of the part's first column
    if (input.target >= id && input.target < min(id + held.count * width, id - first + columns)) {
      const Element u = reinterpret_cast<const Element*>(vectors)[input.target - id];
      part.target_logit = to_float(u) * scale.scale;
    }
    if (blocks > 1) {  // a block has no other's memory to write to alone
      if (thread < blocks) mail.send(part, block, thread);
      mail.wait();
      part = mail.parts[min(thread, blocks - 1)];
    }
    if (thread >= blocks) part = {-infinity(), 0.0f, 0.0f, 0.0f};
    const RowStatistics<float> merged = merge_parts(part);
    if (thread == 0) {
      if (block == 0) a.statistics[row] = merged;
      const CombineArguments& c = a.combine;
      const RowKind kind = c.objective.kind_of(input.target);
      const CallObjective<float> call{.objective = c.objective,
                                      .class_weights = c.class_weights,
                                      .class_sum = scalars.class_sum,
                                      .class_most = 1.0,  // float16 alone asks for it
                                      .reduction = scalars.factor.value};
      terms = terms_of(coefficients_of(call, kind, input, saved_by(merged)), 1.0f);
    }
  }
  __syncthreads();
  const RowTerms t = terms;
  if (t.zero)
    held.each([&](int i) { store16(logits + i * width, uint4{}); });
  else
    write_gradient<scaled>(held, logits, first, t, scale);
}

#endif

template <bool scaled>
__global__ void __launch_bounds__(threads, wanted_blocks)
    fused_kernel(FusedArguments a, LogitScale scale) {
#if __CUDA_ARCH__ >= 900
  fuse_row<scaled>(a, scale);
#endif
}

std::size_t bytes_of_part(std::int64_t columns, int blocks) {
  const std::int64_t all = logits_ld(columns) / width;
  return static_cast<std::size_t>((all + blocks - 1) / blocks) * sizeof(uint4);
}

// A launch of clusters.
struct Launch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute cluster{};

  Launch(std::int64_t rows, std::int64_t columns, int blocks, cudaStream_t stream) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(rows * blocks));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes_of_part(columns, blocks);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  SHARDLOSS_CUDA(cudaGetDevice(&device));
  SHARDLOSS_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Lets the kernel have all shared memory that a block may have, for objects of any size at once.
// Whether the device can run it so.
template <bool scaled>
bool prepare(std::int64_t columns, int blocks) {
  const auto kernel = fused_kernel<scaled>;
  cudaFuncAttributes built{};
  SHARDLOSS_CUDA(cudaFuncGetAttributes(&built, kernel));
  if (built.ptxVersion < 90) return false;  // for an older device: it is empty
  const auto most = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) -
                    built.sharedSizeBytes;
  if (bytes_of_part(columns, blocks) > most) return false;
  SHARDLOSS_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(most)));
  const Launch one(1, columns, blocks, nullptr);
  int clusters = 0;
  SHARDLOSS_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &one.config));
  return clusters > 0;
}

}  // namespace

int blocks_to_hold(std::int64_t columns) {
  if (columns == 0 || attribute(cudaDevAttrClusterLaunch) == 0) return 0;
  const int shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  // What a block takes beside its part, the system's 1 KiB included.
  constexpr std::size_t beside = 2048;
  const auto fit = [&](int blocks) {
    return static_cast<std::size_t>(shared_bytes) / (bytes_of_part(columns, blocks) + beside);
  };
  int blocks = 1;
  while (blocks < most_blocks && fit(blocks) < wanted_blocks) blocks *= 2;
  // With fewer than half as many, a multiprocessor would wait for one phase after the other.
  if (fit(blocks) < wanted_blocks / 2) return 0;
  return prepare<false>(columns, blocks) && prepare<true>(columns, blocks) ? blocks : 0;
}

void fused_rows(const FusedArguments& a, cudaStream_t stream) {
  if (a.combine.rows == 0) return;
  const Objective<float>& objective = a.combine.objective;
  const Launch launch(a.combine.rows, objective.columns, a.blocks, stream);
  const auto kernel = objective.scale == 1.0f ? fused_kernel<false> : fused_kernel<true>;
  SHARDLOSS_CUDA(cudaLaunchKernelEx(&launch.config, kernel, a, scale_of(objective)));
}

}  // namespace shardloss::detail::cuda
