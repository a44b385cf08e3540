/// \file
/// What a problem costs, known before anything runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardloss/export.hpp"
#include "shardloss/problem.hpp"

namespace shardloss {

/// The vocabulary rows [first, first + width) of one rank, of which `vocab` are true (not padding).
struct Shard {
  std::int64_t first = 0;  ///< global id of its first row
  std::int64_t width = 0;  ///< V_r, padding included
  std::int64_t vocab = 0;  ///< those with an id below the true vocabulary
};

/// One buffer of the workspace.
struct PlannedBuffer {
  std::string name;        ///< what it holds
  std::size_t offset = 0;  ///< from the start of the workspace; a multiple of 256
  std::size_t bytes = 0;   ///< without padding
};

/// One of the three products of a chunk.
struct PlannedGemm {
  std::string name;       ///< "logits", "grad_hidden", "grad_weight"
  std::int64_t m = 0;     ///< rows of the result
  std::int64_t n = 0;     ///< its columns
  std::int64_t k = 0;     ///< length of the sums
  std::string algorithm;  ///< the BLAS, or the cublasLt algorithm and how it was found
};

/// One kind of collective call of a way, per pass of max_rows rows.
struct PlannedCollective {
  std::string way;         ///< "forward_backward", "forward", "backward"
  std::string name;        ///< what it carries: "statistics", "grad_hidden", "hidden", ...
  std::string kind;        ///< "all_gather", "all_reduce", "reduce_scatter"
  std::string formula;     ///< of `bytes`, in the symbols of Problem
  std::int64_t calls = 0;  ///< one a chunk, or one a pass
  std::int64_t bytes = 0;  ///< payload this rank contributes, summed over the calls
};

/// What one rank will do. A pure function of the problem, the rank and the kind of device, but for
/// the names of the product algorithms, which a constructed Loss fills in.
struct Plan {
  DeviceKind device = DeviceKind::cpu;  ///< of the problem's tensors
  int rank = 0;                         ///< whose plan this is
  int ranks = 1;                        ///< P
  Shard shard;                          ///< of this rank
  std::int64_t widest = 0;              ///< V_r of the largest shard
  std::int64_t chunk_rows = 0;          ///< C
  std::int64_t chunks = 0;              ///< for max_rows rows, row_sharded: spread evenly
  int slots = 1;  ///< logits buffers: 2 where there is communication to hide, else 1
  DType logits_dtype = DType::float32;               ///< of the logits chunk
  DType grad_hidden_partial_dtype = DType::float32;  ///< of dX before and during its reduction
  std::int64_t kept_rows = 0;                        ///< rows whose logits a Saved keeps

  std::vector<PlannedBuffer> buffers;  ///< of the workspace, in its order
  std::size_t workspace_bytes = 0;     ///< of one call; all buffers with their alignment
  std::size_t saved_bytes = 0;         ///< of one Saved, kept logits included
  /// Of a full chunk; the plan of a CUDA object goes on with the shorter chunks of max_rows rows.
  std::vector<PlannedGemm> gemms;
  std::vector<PlannedCollective> collectives;  ///< of max_rows rows, row_sharded: spread evenly
  double forward_backward_flops = 0;           ///< of this rank, 2 per multiply-add
  double forward_flops = 0;                    ///< likewise
  double backward_flops = 0;                   ///< likewise, the logits that were not kept included
};

/// The plan of `rank` in a group of `ranks`. Throws Error(invalid_argument) for a problem that
/// cannot be computed, naming the field and its value.
SHARDLOSS_API Plan make_plan(const Problem& problem, int ranks, int rank, DeviceKind device);

/// A table for people: shards, chunks, buffers, products, collectives.
SHARDLOSS_API std::string to_string(const Plan& plan);

/// The shard of every rank. Throws Error(mismatch) when the widths do not sum to vocab_padded or do
/// not number `ranks`.
SHARDLOSS_API std::vector<Shard> make_shards(const Problem& problem, int ranks);

}  // namespace shardloss
