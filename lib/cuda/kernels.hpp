/// \file
/// The kernels as plain functions: each enqueues its work on `stream` and returns. Pointers are
/// device memory; shapes stand beside them. [C]: rows of a chunk.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "../objective.hpp"
#include "../records.hpp"
#include "scalars.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/problem.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::detail::cuda {

/// A vector that the caller gave: element i lies at i * stride. data null: not given.
struct InputVector {
  const void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t stride = 0;
};

/// A vector that is written; likewise.
template <class T>
struct OutputVector {
  T* data = nullptr;
  std::int64_t stride = 0;
};

/// A matrix with dense rows. data null: not given.
struct InputMatrix {
  const void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t row_stride = 0;
};

struct OutputMatrix {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t row_stride = 0;
};

/// Which rows of the caller's tensors are computed, and what the group calls them.
struct RowSelection {
  const std::int64_t* index = nullptr;  ///< computed row i is the caller's row index[i]; null: i
  std::int64_t rows = 0;                ///< of the caller's tensors; with `index`
  std::int64_t first = 0;               ///< number of this rank's first computed row in the group
  bool index_is_number = false;         ///< replicated: index[i] is also the row's number
};

// ---- open.cu, give_way.cu

struct OpenArguments {
  RowSelection select;
  std::int64_t rows = 0;                 ///< this rank's computed rows
  InputVector targets;                   ///< or ids; not given with soft targets
  InputVector weights;                   ///< t
  const float* class_weights = nullptr;  ///< [V]
  const float* normalizer = nullptr;
  Objective<float> objective;
  Reduction reduction = Reduction::mean;
  bool whole = false;   ///< this rank's rows are the group's, so ranks compare their targets
  CallHeader header{};  ///< the words that the host knows
  std::byte* exchange[2] = {nullptr, nullptr};  ///< this rank's segment of each slot
  std::uint64_t* calls = nullptr;               ///< how many calls the object has seen
  Mailbox* mailbox = nullptr;
  PassScalars* scalars = nullptr;
  ScanShare* shares = nullptr;  ///< [most_scan_blocks]
};
void open_call(const OpenArguments& arguments, cudaStream_t stream);

/// total += the denominator that the scan finds; nothing else is touched.
void add_denominator(const OpenArguments& arguments, float* total, cudaStream_t stream);

struct AgreeArguments {
  const std::byte* exchange = nullptr;  ///< `ranks` segments
  std::int64_t segment_bytes = 0;
  int ranks = 1;
  bool sum_denominators = false;
  Reduction reduction = Reduction::mean;
  const float* normalizer = nullptr;
  Mailbox* mailbox = nullptr;
  PassScalars* scalars = nullptr;
};
void agree_call(const AgreeArguments& arguments, cudaStream_t stream);

struct CloseArguments {
  const std::byte* header = nullptr;  ///< this rank's, as it opened the call
  std::byte* out = nullptr;
  const Mailbox* mailbox = nullptr;
};
/// out = the header, with the chunk `closing` and what became of the call as its verdict.
void close_call(const CloseArguments& arguments, cudaStream_t stream);

/// Keeps the stream from its next kernel for a few microseconds.
void give_way(cudaStream_t stream);

/// What stands in the outputs of rows that a row index leaves out.
struct SkippedRows {
  std::int64_t rows = 0;
  OutputVector<float> loss, row_loss, logprob;  ///< 0
  OutputVector<float> lse, entropy;             ///< NaN
  OutputVector<std::int64_t> argmax;            ///< -1
  OutputVector<std::uint8_t> correct;           ///< 0
};
void fill_skipped_rows(const SkippedRows& outputs, cudaStream_t stream);

// ---- pack.cu

struct PackArguments {
  RowSelection select;
  std::int64_t first = 0;  ///< of the computed rows
  std::int64_t rows = 0;
  InputVector targets;
  InputVector weights;                ///< not given: 1
  InputVector loss;                   ///< upstreams; not given: 1
  InputVector lse, logprob, entropy;  ///< not given: 0
  RowInput<float>* out = nullptr;     ///< [rows]
};
void pack_row_inputs(const PackArguments& arguments, cudaStream_t stream);

/// out[i, :] = in[row first + i of `select`, :], rows of `columns` elements, both of the same
/// dtype.
void gather_rows(const InputMatrix& in, const RowSelection& select, std::int64_t first,
                 std::int64_t rows, std::int64_t columns, const OutputMatrix& out,
                 cudaStream_t stream);

/// out[i] = in[i], dense; to another floating dtype.
void convert(const void* in, DType in_dtype, void* out, DType out_dtype, std::int64_t count,
             cudaStream_t stream);

// ---- statistics.cu, dlogits.cu

/// The objective as the kernels over logits see it.
struct LogitsArguments {
  InputMatrix logits;     ///< [C, columns]; rows begin at multiples of 16 bytes
  std::int64_t rows = 0;  ///< C
  Objective<float> objective;
  const float* class_weights = nullptr;  ///< [columns]: the shard's; null: 1, or not needed
  InputMatrix soft_targets;              ///< [rows of the group, columns]
};

struct StatisticsArguments {
  LogitsArguments on;
  bool argmax = false;
  bool sums = false;  ///< entropy or label smoothing: centered_sum and weighted_sum
  const RowInput<float>* inputs = nullptr;  ///< [C]
  CallHeader* header = nullptr;             ///< gets the chunk's number
  std::uint64_t chunk = 0;
  RowStatistics<float>* out = nullptr;       ///< [C]
  RowStatistics<float>* partials = nullptr;  ///< [most_split_statistics]
  int multiprocessors = 1;
};
void row_statistics(const StatisticsArguments& arguments, cudaStream_t stream);

struct DlogitsArguments {
  LogitsArguments on;
  const RowCoefficients<float>* coefficients = nullptr;  ///< [C], not divided yet
  const ChunkScale* scale = nullptr;
  /// [C, columns]: the logits in place, or another buffer. Of the dtype of the logits; or 16-bit
  /// for float32 ones, a row beginning where its logits do.
  OutputMatrix out;
  float* bias = nullptr;  ///< [columns]: set to, or where not `first` increased by, the column sums
  bool first = true;
  int multiprocessors = 1;   ///< of the device
  float* scratch = nullptr;  ///< for the sums of some rows each
  std::size_t scratch_bytes = 0;
};
void dlogits(const DlogitsArguments& arguments, cudaStream_t stream);

// ---- combine.cu

struct CombineArguments {
  const std::byte* exchange = nullptr;  ///< `ranks` segments: header, then RowStatistics [C]
  std::int64_t segment_bytes = 0;
  int ranks = 1;
  std::int64_t rows = 0;                    ///< C
  const RowInput<float>* inputs = nullptr;  ///< [C]
  Objective<float> objective;
  const float* class_weights = nullptr;  ///< [V]

  RowSelection select;
  std::int64_t own_begin = 0, own_rows = 0, own_first = 0;  ///< of Chunk
  OutputVector<float> loss, row_loss, lse, logprob, entropy;
  OutputVector<std::int64_t> argmax;
  OutputVector<std::uint8_t> correct;
  const SavedRow<float>* read = nullptr;  ///< [C]: backward, in place of the exchange
  SavedRow<float>* write = nullptr;       ///< [C]: forward

  RowCoefficients<float>* coefficients = nullptr;  ///< [C], or null
  bool scales_gradients = false;                   ///< float16: ChunkScale, otherwise 1
  int slot = 0;
  std::uint64_t chunk = 0;
  CombineShare* shares = nullptr;  ///< [most_combine_blocks]
  PassScalars* scalars = nullptr;
  Mailbox* mailbox = nullptr;
};
void combine_rows(const CombineArguments& arguments, cudaStream_t stream);

// ---- fused_rows.cu

/// row_statistics, the coefficients of combine_rows and dlogits in one, for a group of one rank and
/// the plain objective: no soft targets, smoothing, entropy, cap, argmax or sums of columns, and a
/// scale above 0.
struct FusedArguments {
  OutputMatrix logits;                         ///< bfloat16 [C, columns]; become their gradient
  RowStatistics<float>* statistics = nullptr;  ///< [C], for combine_rows, which comes behind
  int blocks = 1;                              ///< that hold a row: blocks_to_hold
  CombineArguments combine;                    ///< what coefficients need, and the rows
};
void fused_rows(const FusedArguments& arguments, cudaStream_t stream);

/// Of how many blocks a cluster must be to hold a row of bfloat16 logits on the current device. 0:
/// the row is too long, or the device or what the library was built for has no clusters. Must have
/// been called on a device before fused_rows is: it prepares the kernels there.
int blocks_to_hold(std::int64_t columns);

// ---- bias.cu

/// sums[v] (+)= scale.alpha * sum_j dlogits[j, v]; `first` chunk writes, others add.
void sum_columns(const InputMatrix& dlogits, std::int64_t rows, std::int64_t columns,
                 const ChunkScale* scale, bool first, float* sums, cudaStream_t stream);
/// The same from sums of some rows each: shares [lines, columns].
void add_column_shares(const float* shares, std::int64_t lines, std::int64_t columns,
                       const ChunkScale* scale, bool first, float* sums, cudaStream_t stream);

// ---- store.cu

/// out[row first + i of `select`, :] (+)= in[i, :].
void store_rows(const InputMatrix& in, std::int64_t rows, std::int64_t columns,
                const RowSelection& select, std::int64_t first, const OutputMatrix& out,
                bool accumulate, cudaStream_t stream);

// ---- finish.cu

struct FinishArguments {
  bool reduced = true;
  std::int64_t rows = 0;  ///< of per-row losses
  OutputVector<float> loss, row_loss;
  float* cross_entropy = nullptr;
  float* z_loss = nullptr;
  std::int64_t* counted = nullptr;
  const PassScalars* scalars = nullptr;
  Mailbox* mailbox = nullptr;
};
void finish_call(const FinishArguments& arguments, cudaStream_t stream);

/// mailbox.finished = the call's number.
void report_finished(const PassScalars* scalars, Mailbox* mailbox, cudaStream_t stream);

// ---- embedding.cu

/// ids[i] (int64) of the caller's ids [first, first + rows).
void pack_ids(const InputVector& ids, std::int64_t first, std::int64_t rows, std::int64_t* out,
              cudaStream_t stream);

/// out[i, :] = weight[ids[i] - first, :] where this shard owns the id, else 0; out is dense.
void look_up(const std::int64_t* ids, std::int64_t rows, std::int64_t columns,
             const Objective<float>& shard, const InputMatrix& weight, void* out,
             cudaStream_t stream);

/// Scratch bytes that scatter_rows takes for `rows` rows.
std::size_t scatter_scratch_bytes(std::int64_t rows);

/// grad_weight[ids[i] - first, :] += in[i, :] for the ids of this shard, each id's rows in
/// ascending order.
void scatter_rows(const std::int64_t* ids, std::int64_t rows, std::int64_t columns,
                  const Objective<float>& shard, const InputMatrix& in,
                  const OutputMatrix& grad_weight, std::byte* scratch, std::size_t scratch_bytes,
                  cudaStream_t stream);

// ---- random.cu

/// Fills a dense array with reproducible values of mean 0 and deviation `deviation`.
void fill_random(void* out, DType dtype, std::int64_t count, float deviation, std::uint64_t seed,
                 cudaStream_t stream);

// ---- checksum.cu

/// *out = a checksum of `bytes` bytes, of which a part of a 4-byte word at the end does not count.
void checksum(const void* in, std::size_t bytes, std::uint64_t* out, cudaStream_t stream);

}  // namespace shardloss::detail::cuda
