/// \file
/// Problems with their data, chosen or drawn at random; the same on every rank for one seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::test {

/// A problem for a group of ranks and the whole data of one call.
struct Sample {
  Problem problem;
  ReferenceProblem data;            ///< values already rounded to the problem's dtypes
  std::vector<std::int64_t> split;  ///< row_sharded: rows of each rank
  std::uint64_t seed = 0;

  /// The rows [first, first + count) that `rank` brings.
  std::int64_t first_row(int rank) const;
  std::int64_t own_rows(int rank) const;
};

/// float64 for float64 problems, else float32: what losses and weights are in.
DType real_dtype(const Problem& problem);

/// Copies sizes and options of the problem into the data, where the reference reads them.
void describe(Sample& sample);

/// A problem with defaults: `rows` rows of `hidden`, `vocab` ids, in one chunk.
Problem plain_problem(std::int64_t rows, std::int64_t hidden, std::int64_t vocab,
                      DType dtype = DType::float32);

/// Data for `problem` on `ranks` ranks. Each shard of the weight has its own mean and scale, so
/// that a local average shows; padding rows are NaN; targets lie on shard borders, ignored rows at
/// both ends; one row has logits past exp's overflow, one only negative ones.
Sample fill(const Problem& problem, int ranks, std::uint64_t seed);

/// The same for a call of `rows` rows, fewer than max_rows.
Sample fill_rows(const Problem& problem, std::int64_t rows, int ranks, std::uint64_t seed);

/// Rows [first, first + rows) of a sample with hard targets, by themselves: their hidden states,
/// targets and token weights. The split is the caller's.
Sample rows_of(const Sample& batch, std::int64_t first, std::int64_t rows);

/// A random problem with random options, sizes (1, primes, 8k + 3), shard widths (0 too), chunks.
Sample random_sample(int ranks, std::uint64_t seed);

/// The same of the plain objective in bfloat16: no soft targets, smoothing, entropy or cap; and
/// with vocabularies up to 150001.
Sample random_plain_sample(int ranks, std::uint64_t seed);

/// K of WIRE.md, counted up one by one: the fewest chunks of at most `most` rows of the group,
/// where chunk i takes rows [i N_r / K, (i + 1) N_r / K) of every rank.
std::int64_t fewest_chunks(const std::vector<std::int64_t>& rows_per_rank, std::int64_t most);

/// What a failing random test prints: enough to see which options meet.
std::string describe_options(const Sample& sample);

/// A sample whose logits are given: x is the one-hot of its row (hidden = rows) and W the transpose
/// of the logits. All values must be exact in the dtype.
Sample with_logits(const std::vector<std::vector<double>>& logits,
                   const std::vector<std::int64_t>& targets, const Problem& options = {});

}  // namespace shardloss::test
