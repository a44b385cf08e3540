/// \file
/// Where each buffer of a call lies in its workspace.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "records.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::detail {

/// The buffers of a workspace; those of a chunk come once per slot.
enum class Buffer : std::uint8_t {
  logits,        ///< slot: [C, logits_ld(true columns of the shard)], Plan::logits_dtype
  exchange,      ///< slot: P segments of exchange_bytes: CallHeader, then RowStatistics [C]
  row_inputs,    ///< slot: RowInput [C]
  coefficients,  ///< slot: RowCoefficients [C]
  hidden_rows,   ///< slot: [C, D] in the problem's dtype; row_sharded or row_index
  grad_hidden,   ///< slot: [C, D] Plan::grad_hidden_partial_dtype; where P > 1, row_index, or a
                 ///< 16-bit CPU problem
  grad_weight,   ///< [V_r, D] float32: where the gradient is 16-bit, chunks are several, and not
                 ///< compact
  grad_bias,     ///< [V_r] real
  scalars,       ///< running sums, denominator, chunk scales: 4 KiB, laid out by the backend
  hidden_tile,   ///< CPU, 16-bit: [C, D] float32
  weight_tile,   ///< CPU, 16-bit: [tile, D] float32
  logits_tile,   ///< CPU, 16-bit: [C, tile] float32
  row_scratch,   ///< CPU: [C, 2] double, losses; CUDA: partial sums, the bias as logits have it
  gemm,          ///< CUDA: cublasLt's
  count
};

/// Elements between two rows of a logits buffer: rows begin at multiples of 16 bytes.
constexpr std::int64_t logits_ld(std::int64_t columns) { return (columns + 7) / 8 * 8; }

/// Whether the group's rows come from several ranks: row_sharded over more than one.
inline bool gathers_rows(const Problem& problem, const Plan& plan) {
  return problem.layout == Layout::row_sharded && plan.ranks > 1;
}

/// Whether calls end with an exchange of headers. An aborted rank on a device lets its collectives
/// run through, and its peers' end well with anything in them: so a rank believes its results once
/// all ranks have said that theirs came in. Calls without rows have none.
inline bool closes(const Plan& plan) { return plan.ranks > 1 && plan.device == DeviceKind::cuda; }

/// Offsets and sizes. A buffer that a problem does not need has 0 bytes.
class WorkspaceMap {
 public:
  std::size_t offset(Buffer buffer, int slot = 0) const { return at(buffer, slot).offset; }
  std::size_t bytes(Buffer buffer, int slot = 0) const { return at(buffer, slot).bytes; }
  bool has(Buffer buffer) const { return bytes(buffer) != 0; }
  std::size_t total() const { return total_; }

  /// The buffer in `workspace`, as T.
  template <class T = void>
  T* in(std::byte* workspace, Buffer buffer, int slot = 0) const {
    return reinterpret_cast<T*>(workspace + offset(buffer, slot));
  }

  /// Appends a buffer, 256-byte aligned.
  void place(Buffer buffer, int slot, std::size_t bytes);

  /// Bytes of one rank's segment of an exchange.
  std::int64_t exchange_bytes = 0;
  /// Vocabulary rows that the CPU backend treats at a time.
  std::int64_t tile = 0;

 private:
  struct Place {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  const Place& at(Buffer buffer, int slot) const {
    return places_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(slot)];
  }
  std::array<std::array<Place, 2>, static_cast<std::size_t>(Buffer::count)> places_{};
  std::size_t total_ = 0;
};

/// The map of a problem whose plan's geometry (shard, chunk_rows, slots, dtypes) is known.
WorkspaceMap map_workspace(const Problem& problem, const Plan& plan);

/// The map of an embedding over the same shards.
WorkspaceMap map_embedding(const Problem& problem, const Plan& plan);

/// Bytes of a Saved: SavedRow for max_rows rows, 256-byte aligned, then the kept logits.
std::size_t saved_rows_bytes(const Problem& problem);
std::size_t saved_bytes(const Problem& problem, const Plan& plan);

/// The dtype in which a gradient with that option is written.
constexpr DType grad_dtype(GradDType option, DType dtype) {
  return option == GradDType::float32 && dtype != DType::float64 ? DType::float32 : dtype;
}

}  // namespace shardloss::detail
