/// \file
/// What one rank computes: the seam between the order of the steps (pass.cpp) and how they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "call.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"
#include "workspace.hpp"

namespace shardloss::detail {

/// One rank's mathematics on one kind of device. Calls enqueue on call.stream (CUDA) or compute at
/// once (CPU, calling Transport::progress between tiles). Buffers are the workspace's: WorkspaceMap
/// says where. Only RowInput rows and header words cross between ranks, in buffers that the pass
/// communicates.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Device memory for an owned workspace or a Saved; throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void (*releaser() const noexcept)(std::byte*) = 0;
  /// Checks that memory the caller passed is on the right device.
  virtual void check_memory(const void* memory, const char* name) const = 0;
  /// Fills in the plan's product algorithms; may time them (GemmChoice::tuned).
  virtual void choose_gemms(Plan& plan) = 0;

  /// Step 0. Counts the call, looks once at this rank's targets and weights, and writes CallHeader
  /// into this rank's exchange segment of every slot. replicated: the denominator is known
  /// hereafter. Zeroes the running sums; writes 0 into gradients that no product will write (no
  /// rows, padding rows) and the fixed values of rows that row_index leaves out.
  virtual void open(const Call& call) = 0;
  /// The exchange of the slot has arrived: compares the headers. CPU throws on a disagreement; CUDA
  /// raises the mailbox and makes the loss NaN. With `sum_denominators` adds up the shares
  /// (row_sharded).
  virtual void agree(const Call& call, int slot, bool sum_denominators) = 0;

  /// Step 1, local part: RowInput of this rank's positions into the chunk's row buffer; their
  /// hidden rows into the chunk's hidden buffer where the workspace has one (row_sharded,
  /// row_index).
  virtual void pack_rows(const Call& call, const Chunk& chunk) = 0;
  /// Steps 2 and 3: logits of the chunk into its slot (or straight into Saved, for rows it keeps),
  /// and this rank's RowStatistics behind the header in its exchange segment. On one rank, where
  /// gradients follow at once, the logits may already be dlogits then.
  virtual void logits_and_statistics(const Call& call, const Chunk& chunk) = 0;
  /// Steps 4b and 5: combines the gathered statistics in rank order: outputs of this rank's
  /// positions, running sums, SavedRow, and, where dlogits are still to be made, RowCoefficients.
  virtual void combine(const Call& call, const Chunk& chunk) = 0;
  /// backward's steps 2 and 5: the logits again where they were not kept, RowCoefficients from
  /// Saved.
  virtual void recompute(const Call& call, const Chunk& chunk) = 0;
  /// Step 7, dX partial sums = dU W: into the slot's grad_hidden buffer where the workspace has
  /// one, else into the result. `make_dlogits`: step 6 comes with it: U becomes dU in place (kept
  /// logits: dU goes to the slot), tile by tile on the CPU, and the bias gradient is summed.
  virtual void grad_hidden(const Call& call, const Chunk& chunk, bool make_dlogits) = 0;
  /// Step 8, dW += dU^T X, where the weight gradient is asked for; `make_dlogits` as above.
  /// Whichever of the two products comes first in a chunk makes the dlogits, where
  /// logits_and_statistics has not; the pass calls only those asked for.
  virtual void grad_weight(const Call& call, const Chunk& chunk, bool make_dlogits) = 0;
  /// After the reduction: this rank's positions of the slot's grad_hidden buffer into the result.
  virtual void store_grad_hidden(const Call& call, const Chunk& chunk) = 0;
  /// Loss and counts from the running sums; weight and bias gradients out of their accumulators.
  virtual void finish(const Call& call) = 0;

  /// total += the sum of t c_y over this rank's ordinary rows: one look at targets and weights.
  virtual void add_denominator(const Call& call, const Tensor& total) = 0;

  /// A collective has set out, and what comes next on `stream` would fill the device and keep it
  /// from moving: lets it go first. CPU: nothing.
  virtual void give_way(Stream stream) { (void)stream; }
  /// CUDA, in front of a call's last exchange: what became of the call on this rank, into the
  /// exchange of slot 0, where the ranks' headers lie next to each other.
  virtual void close(std::byte* workspace, Stream stream) { (void)workspace, (void)stream; }
  /// It has arrived: as agree().
  virtual void agree_closed(std::byte* workspace, Stream stream) { (void)workspace, (void)stream; }

  // The embedding. Its workspace has exchange (header only), row_inputs (ids as int64 [C]) and
  // hidden_rows ([C, D], the problem's dtype); CUDA sorts in row_scratch.

  /// Counts the call, writes the header (`targets`: hash of the ids, replicated), zeroes
  /// grad_weight where not accumulating.
  virtual void embed_open(const EmbedCall& call) = 0;
  /// As agree() above.
  virtual void embed_agree(const EmbedCall& call) = 0;
  /// This rank's ids into their positions of row_inputs; backward, row_sharded: its rows of
  /// grad_output into hidden_rows.
  virtual void embed_pack(const EmbedCall& call, const Chunk& chunk) = 0;
  /// hidden_rows[j] = this shard's weight row of the id at j, or zeros.
  virtual void embed_lookup(const EmbedCall& call, const Chunk& chunk) = 0;
  /// This rank's positions of hidden_rows into output.
  virtual void embed_store(const EmbedCall& call, const Chunk& chunk) = 0;
  /// grad_weight[id] += rows (replicated: of grad_output; row_sharded: of hidden_rows), each id's
  /// rows in ascending order.
  virtual void embed_scatter(const EmbedCall& call, const Chunk& chunk) = 0;
  /// The call is over.
  virtual void embed_finish(const EmbedCall& call) { (void)call; }

  /// What the calls on the stream ended in: waits (bounded by `transport`'s deadline), then the
  /// pending Error(invalid_target), once, if any. Throws transport failures.
  virtual void wait(Stream stream) = 0;
};

std::unique_ptr<Backend> make_cpu_backend(const Problem& problem, const Plan& plan,
                                          const WorkspaceMap& map, Transport& transport);
/// Throws Error(invalid_argument) where the library was built without CUDA.
std::unique_ptr<Backend> make_cuda_backend(const Problem& problem, const Plan& plan,
                                           const WorkspaceMap& map, Transport& transport,
                                           Device device);

}  // namespace shardloss::detail
