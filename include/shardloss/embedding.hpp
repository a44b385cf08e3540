/// \file
/// The vocabulary-parallel embedding over the shards of the head's weight.
#pragma once

#include <memory>
#include <span>

#include "shardloss/communicator.hpp"
#include "shardloss/export.hpp"
#include "shardloss/loss.hpp"
#include "shardloss/problem.hpp"

namespace shardloss {

/// Look-up in a weight sharded like the head's: each rank looks up the ids that it owns, the others
/// contribute zero rows, and the sum over ranks is exact. With a tied head, backward accumulates
/// into the same gradient buffer as Loss does.
///
/// Of the problem it uses max_rows (of a call), hidden, vocab, vocab_padded, shard_widths, dtype,
/// layout, grad_weight and chunking. Ids outside [0, vocab) give a zero row and no gradient, and
/// Error(invalid_target) from the next wait(); padding an input with an ignore_index outside is
/// silent. Inside, ignore_index is an id like others: it ignores targets, not inputs.
///
/// ids: [rows] int32 or int64, any stride. replicated: the same on all ranks; output [rows, D]
/// comes back whole and bitwise the same on every rank. row_sharded: each rank passes its own ids
/// and gets its own rows; the gradient of the output likewise.
class SHARDLOSS_API VocabParallelEmbedding {
 public:
  /// Collective; throws like Loss.
  VocabParallelEmbedding(const Problem& problem, const Communicator& communicator,
                         Device device = {});
  ~VocabParallelEmbedding();
  /// Leaves an object that can be assigned or destroyed.
  VocabParallelEmbedding(VocabParallelEmbedding&&) noexcept;
  /// Likewise.
  VocabParallelEmbedding& operator=(VocabParallelEmbedding&&) noexcept;

  /// Of device memory that it holds.
  std::size_t workspace_bytes() const noexcept;

  /// output[i] = W[ids[i]], [rows, D] in the problem's dtype. Collective.
  void forward(const ConstTensor& ids, const ConstTensor& weight, const Tensor& output,
               std::span<const std::int64_t> rows_per_rank = {}, Stream stream = {}) const;

  /// grad_weight[ids[i]] += grad_output[i] (or = the sum, where not accumulating) for the ids of
  /// this rank's shard, in the order of the rows: the same bits in every run. Collective.
  void backward(const ConstTensor& ids, const ConstTensor& grad_output, const Tensor& grad_weight,
                bool accumulate = true, std::span<const std::int64_t> rows_per_rank = {},
                Stream stream = {}) const;

  /// As Loss::wait.
  void wait(Stream stream = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardloss
