/// \file
/// How the rows of a call are cut into chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "call.hpp"

namespace shardloss::detail {

/// a / b rounded up, for a >= 0 and b >= 1.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

/// Chunks of at most `chunk_rows` rows of `rows` replicated rows, in order.
std::vector<Chunk> cut_rows(std::int64_t rows, std::int64_t chunk_rows, int slots);

/// Chunks of at most `chunk_rows` rows of a group whose ranks hold rows_per_rank. Every rank takes
/// part in every chunk with its share, chunk i of K with rows [i N_r / K, (i + 1) N_r / K), so that
/// gathering and reducing load all ranks alike; only where chunks are smaller than the group do
/// they run through the ranks one after the other.
std::vector<Chunk> cut_group_rows(std::span<const std::int64_t> rows_per_rank,
                                  std::int64_t chunk_rows, int slots, int rank);

/// How many chunks that makes.
std::int64_t count_group_chunks(std::span<const std::int64_t> rows_per_rank,
                                std::int64_t chunk_rows);

/// The rows of each rank where `rows` are spread evenly: what a plan counts under row_sharded.
std::vector<std::int64_t> even_rows(std::int64_t rows, int ranks);

/// The sizes of rows that take `each` elements or bytes: `counts` times it.
std::vector<std::int64_t> scaled(std::vector<std::int64_t> counts, std::int64_t each);

}  // namespace shardloss::detail
