/// \file
/// One rank's part of a problem's data, and the whole of it for the reference.
#pragma once

#include <cstdint>
#include <vector>

#include "host_array.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "shardloss/plan.hpp"
#include "source.hpp"

namespace shardloss::launch {

/// What one rank passes to the library.
struct Share {
  Problem problem;
  Shard shard;
  int rank = 0;
  std::int64_t total_rows = 0;  ///< N
  std::int64_t first_row = 0;   ///< of this rank's rows: 0 where replicated
  std::int64_t rows = 0;
  std::vector<std::int64_t> rows_per_rank;  ///< row_sharded: computed rows of every rank

  HostArray hidden, weight, bias, targets, soft_targets, token_weights, class_weights, normalizer,
      row_index;
  HostArray upstream, upstream_lse, upstream_logprob, upstream_entropy;
  HostArray before_hidden, before_weight, before_bias;
};

/// The dtype of statistics, losses and upstream gradients.
DType real_of(const Problem& problem);
/// The dtype of a gradient that is asked for; float64 problems have no other.
DType grad_dtype(GradDType choice, DType dtype);

/// Rows of each rank: as even as can be, unless the options say how. Throws
/// Error(invalid_argument).
std::vector<std::int64_t> split_rows(const Options& options, std::int64_t rows, int ranks);

/// Throws Error(invalid_argument) where split or row index do not fit.
Share read_share(const Source& source, const Options& options, const Problem& problem, int rank,
                 int ranks);

/// The whole problem, rounded as the ranks round it.
ReferenceProblem read_whole(const Source& source, const Options& options, const Problem& problem);

}  // namespace shardloss::launch
