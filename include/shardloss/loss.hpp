/// \file
/// The language-model head and its cross-entropy, forward and gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "shardloss/communicator.hpp"
#include "shardloss/export.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss {

/// What a call reads. "rows" are this rank's rows of the call: all of them (replicated), its own
/// (row_sharded). "real" is float32, or float64 where Problem::dtype is. Everything lives on the
/// device of the Loss.
struct Inputs {
  /// [rows, D], Problem::dtype, any row stride, unit column stride. CUDA: finite in rows without a
  /// gradient too, where the weight's is asked for.
  ConstTensor hidden{};
  ConstTensor weight{};         ///< [V_r, D], this rank's shard, likewise
  ConstTensor bias{};           ///< [V_r], Problem::dtype, contiguous; where Problem::bias
  ConstTensor targets{};        ///< [rows], int32 or int64, any stride: global vocabulary ids
  ConstTensor soft_targets{};   ///< [rows of the group, V_r], real or Problem::dtype; where
                                ///< Problem::soft_targets; row_sharded: not with row_index, since
                                ///< no rank knows which rows the others named
  ConstTensor token_weights{};  ///< [rows], real, any stride; not given: 1
  ConstTensor class_weights{};  ///< [V], real, contiguous, whole on every rank; where
                                ///< Problem::class_weights
  ConstTensor normalizer{};     ///< scalar, real; where Problem::normalizer
  /// [n], int64, contiguous, no row twice; where Problem::row_index: only these rows of `hidden`
  /// are computed. The others get loss 0, target_logprob 0, correct 0, lse and entropy NaN (they
  /// are not known), argmax -1, and a zero row of the hidden gradient. Not given: all rows.
  /// An entry outside [0, rows) is invalid_argument: on the CPU the call is refused before anything
  /// is touched, likewise for a row named twice; on CUDA no memory outside the rows is touched, the
  /// loss is NaN and wait() throws. A row named twice is not found out there: results unspecified.
  ConstTensor row_index{};
  /// row_sharded: rows of every rank, [P], the same list on every rank (with row_index: the lengths
  /// of the ranks' indices). replicated: leave empty.
  std::span<const std::int64_t> rows_per_rank{};
};

/// What a call computes beside gradients; what is not given is not computed. All ranks ask for the
/// same. Per-row outputs are [rows], any stride. Asking for argmax, correct or a bias gradient
/// keeps a bfloat16 forward_backward on one GPU from the kernel that reads the logits once, and so
/// may change last bits of the rest.
struct Outputs {
  Tensor loss{};      ///< real; [rows] with Reduction::none, else a scalar, the same on every rank
  Tensor row_loss{};  ///< real; the unreduced loss of each row
  Tensor lse{};       ///< real; log-sum-exp over the vocabulary
  Tensor target_logprob{};  ///< real; 0 on ignored rows, NaN on invalid ones
  Tensor entropy{};         ///< real; where Problem::entropy
  Tensor argmax{};          ///< int64; global id, the lowest wins a tie
  Tensor correct{};         ///< uint8; 1 where argmax is the target of an ordinary row
  Tensor counted_rows{};    ///< int64 scalar: ordinary rows of the group
  Tensor cross_entropy{};   ///< real scalar: the part of the (reduced) loss without z-loss
  Tensor z_loss{};          ///< real scalar: the z-loss part
};

/// Upstream gradients: real, a scalar or [rows] with any stride (0 too).
struct Upstreams {
  ConstTensor loss{};            ///< not given: 1. Per row only with Reduction::none
  ConstTensor lse{};             ///< not given: 0, likewise below
  ConstTensor target_logprob{};  ///< of target_logprob
  ConstTensor entropy{};         ///< where Problem::entropy
};

/// Where gradients go; what is not given is not computed. `hidden` is given on all ranks or on
/// none; `weight` and `bias` are each rank's own affair (a frozen shard skips the product).
///
/// After a forward whose backward is never called a buffer (main_grad) holds what it held before;
/// after an error it is unspecified.
struct Gradients {
  Tensor hidden{};  ///< [rows, D], GradDType of the problem, unit column stride
  Tensor
      weight;  ///< [V_r, D], likewise; padding rows are written 0, or left alone when accumulating
  Tensor bias{};                   ///< [V_r], GradDType of the weight, contiguous
  bool accumulate_hidden = false;  ///< += instead of =
  bool accumulate_weight = false;  ///< likewise
  bool accumulate_bias = false;    ///< likewise
};

/// Where a call runs. A Loss that owns its workspace needs none; otherwise at least
/// plan().workspace_bytes, 256-byte aligned, free until the call has finished on the stream. One
/// workspace serves one call at a time.
struct Execution {
  Stream stream{};                  ///< where the call is enqueued; CPU: not read
  void* workspace = nullptr;        ///< on the device of the Loss
  std::size_t workspace_bytes = 0;  ///< at `workspace`
};

/// What forward keeps for backward: the softmax statistics of each row, and the logits of the first
/// keep_logits rows. Made by Loss::make_saved for that Loss alone, filled by forward, read any
/// number of times by backward.
class SHARDLOSS_API Saved {
 public:
  struct State;
  /// Made by Loss::make_saved.
  explicit Saved(std::unique_ptr<State> state);
  ~Saved();
  Saved(Saved&&) noexcept;             ///< leaves nothing to backward from
  Saved& operator=(Saved&&) noexcept;  ///< likewise

  /// The library's side of it; null once it was moved from.
  State* state() const noexcept { return state_.get(); }

 private:
  std::unique_ptr<State> state_;
};

/// Who provides the workspace of the calls.
enum class WorkspaceOwner : std::uint8_t { library, caller };

/// One problem on one group of ranks. Immutable; calls keep nothing in it but their number.
///
/// Errors: construction throws on every rank or on none (invalid_argument, mismatch,
/// out_of_memory). Calls throw Error(invalid_argument) for arguments that do not fit; on the CPU
/// every rank of the group throws then, and the communicator stays good. Ranks that disagree in a
/// call end in an Error on every rank within the deadline. Invalid targets are reported by the next
/// wait().
///
/// On CUDA calls only enqueue: no allocation, no read-back, no device synchronisation; they can be
/// captured in a graph. On return the outputs are ordered on the stream.
class SHARDLOSS_API Loss {
 public:
  /// Collective. `device`: where every tensor of the calls will live.
  Loss(const Problem& problem, const Communicator& communicator, Device device = {},
       WorkspaceOwner workspace = WorkspaceOwner::library);
  ~Loss();
  Loss(Loss&&) noexcept;             ///< leaves an object that can be assigned or destroyed
  Loss& operator=(Loss&&) noexcept;  ///< likewise

  /// As it was given.
  const Problem& problem() const noexcept;
  /// What runs on this rank.
  const Plan& plan() const noexcept;
  /// The group that it was given.
  const Communicator& communicator() const noexcept;
  /// Where every tensor of the calls lives.
  Device device() const noexcept;

  /// Allocates plan().saved_bytes on the device. Not collective.
  Saved make_saved() const;
  /// The same over the caller's memory: 256-byte aligned, at least plan().saved_bytes, outliving
  /// Saved.
  Saved make_saved(void* memory, std::size_t bytes) const;

  /// The outputs, and where `saved` is given what backward needs. Collective.
  void forward(const Inputs& inputs, const Outputs& outputs, Saved* saved = nullptr,
               const Execution& on = {}) const;

  /// Gradients from what forward saved, with the same inputs. May be called again with other
  /// upstreams. Collective. 2NVD operations recompute the logits that were not kept, 4NVD make the
  /// gradients.
  void backward(const Inputs& inputs, const Saved& saved, const Upstreams& upstreams,
                const Gradients& gradients, const Execution& on = {}) const;

  /// Outputs and gradients in one pass over the row chunks, for upstreams that are known
  /// beforehand. Collective. 6NVD operations.
  void forward_backward(const Inputs& inputs, const Outputs& outputs, const Upstreams& upstreams,
                        const Gradients& gradients, const Execution& on = {}) const;

  /// total += this rank's share of the denominator of Reduction::mean: the sum of t c_y over its
  /// ordinary rows (replicated: over all rows); with soft targets the sum of t. Of `inputs` it
  /// looks at targets, token_weights, class_weights and row_index; with soft targets at the number
  /// of rows of hidden in place of targets, and wants soft_targets given. `total`: a real scalar on
  /// the device. Not collective; with sum_over it makes the normalizer of many calls and groups
  /// without the host reading anything:
  ///
  ///     for (const Inputs& batch : micro_batches) loss.add_denominator(batch, total);
  ///     sum_over(data_parallel, total);     // row_sharded: and sum_over(loss.communicator(),
  ///     total)
  ///
  /// Throws Error(invalid_argument).
  void add_denominator(const Inputs& inputs, const Tensor& total, const Execution& on = {}) const;

  /// Waits for the calls on the stream and throws what they ended in: Error(invalid_target) naming
  /// row and value, or the communicator's failure. Never waits past the deadline.
  void wait(Stream stream = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardloss
