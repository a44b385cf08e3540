// How the rows of a call are cut into chunks: pure functions, the same on every rank.
#include "chunks.hpp"

#include <algorithm>
#include <numeric>

namespace shardloss::detail {
namespace {

// The first row of chunk `index` of `chunks` among a rank's `rows`.
std::int64_t share(std::int64_t index, std::int64_t rows, std::int64_t chunks) {
  return static_cast<std::int64_t>(static_cast<__int128>(index) * rows / chunks);
}

// Of all chunks the last has the most: what rounding down keeps from the others.
std::int64_t largest_chunk(std::span<const std::int64_t> rows, std::int64_t chunks) {
  std::int64_t largest = 0;
  for (const std::int64_t own : rows) largest += ceil_div(own, chunks);
  return largest;
}

// Whether every rank has a share of every chunk.
bool everyone(std::span<const std::int64_t> rows_per_rank, std::int64_t chunk_rows) {
  return chunk_rows >= static_cast<std::int64_t>(rows_per_rank.size());
}

// segments[chunk][rank]; every rank has a share of every chunk.
std::vector<std::vector<std::int64_t>> shared_segments(std::span<const std::int64_t> rows,
                                                       std::int64_t chunk_rows) {
  const std::int64_t chunks = count_group_chunks(rows, chunk_rows);
  std::vector<std::vector<std::int64_t>> segments(static_cast<std::size_t>(chunks));
  for (std::int64_t index = 0; index < chunks; ++index) {
    for (const std::int64_t own : rows) {
      segments[static_cast<std::size_t>(index)].push_back(share(index + 1, own, chunks) -
                                                          share(index, own, chunks));
    }
  }
  return segments;
}

// segments[chunk][rank]; windows of chunk_rows rows through the ranks' rows in rank order.
std::vector<std::vector<std::int64_t>> window_segments(std::span<const std::int64_t> rows,
                                                       std::int64_t total,
                                                       std::int64_t chunk_rows) {
  std::vector<std::vector<std::int64_t>> segments;
  for (std::int64_t begin = 0; begin < total; begin += chunk_rows) {
    const std::int64_t end = std::min(begin + chunk_rows, total);
    std::vector<std::int64_t> counts;
    std::int64_t first = 0;
    for (const std::int64_t own : rows) {
      const std::int64_t low = std::clamp(begin, first, first + own);
      const std::int64_t high = std::clamp(end, first, first + own);
      counts.push_back(high - low);
      first += own;
    }
    segments.push_back(std::move(counts));
  }
  return segments;
}

}  // namespace

std::int64_t count_group_chunks(std::span<const std::int64_t> rows_per_rank,
                                std::int64_t chunk_rows) {
  const std::int64_t total =
      std::accumulate(rows_per_rank.begin(), rows_per_rank.end(), std::int64_t{0});
  std::int64_t few = ceil_div(total, chunk_rows);
  if (total == 0 || !everyone(rows_per_rank, chunk_rows)) return few;
  // Rounding adds at most a row a rank; with as many chunks as a rank has rows, all fit.
  std::int64_t enough =
      std::max(few, *std::max_element(rows_per_rank.begin(), rows_per_rank.end()));
  while (few < enough) {
    const std::int64_t middle = few + (enough - few) / 2;
    if (largest_chunk(rows_per_rank, middle) > chunk_rows)
      few = middle + 1;
    else
      enough = middle;
  }
  return enough;
}

std::vector<Chunk> cut_rows(std::int64_t rows, std::int64_t chunk_rows, int slots) {
  std::vector<Chunk> chunks;
  for (std::int64_t first = 0; first < rows; first += chunk_rows) {
    Chunk chunk;
    chunk.index = static_cast<std::int64_t>(chunks.size());
    chunk.slot = static_cast<int>(chunk.index % slots);
    chunk.first = first;
    chunk.rows = std::min(chunk_rows, rows - first);
    chunk.own_rows = chunk.rows;
    chunk.own_first = first;
    chunk.last = first + chunk.rows == rows;
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

std::vector<Chunk> cut_group_rows(std::span<const std::int64_t> rows_per_rank,
                                  std::int64_t chunk_rows, int slots, int rank) {
  const std::int64_t total =
      std::accumulate(rows_per_rank.begin(), rows_per_rank.end(), std::int64_t{0});
  if (total == 0) return {};
  auto segments = everyone(rows_per_rank, chunk_rows)
                      ? shared_segments(rows_per_rank, chunk_rows)
                      : window_segments(rows_per_rank, total, chunk_rows);
  std::vector<Chunk> chunks;
  std::int64_t first = 0;
  std::int64_t own_first = 0;
  const auto own = static_cast<std::size_t>(rank);
  for (auto& counts : segments) {
    Chunk chunk;
    chunk.index = static_cast<std::int64_t>(chunks.size());
    chunk.slot = static_cast<int>(chunk.index % slots);
    chunk.first = first;
    chunk.rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    chunk.own_begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
    chunk.own_rows = counts[own];
    chunk.own_first = own_first;
    chunk.last = first + chunk.rows == total;
    first += chunk.rows;
    own_first += chunk.own_rows;
    chunk.segments = std::move(counts);
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

std::vector<std::int64_t> even_rows(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> each;
  for (int rank = 0; rank < ranks; ++rank)
    each.push_back(rows / ranks + (rank < rows % ranks ? 1 : 0));
  return each;
}

std::vector<std::int64_t> scaled(std::vector<std::int64_t> counts, std::int64_t each) {
  for (std::int64_t& count : counts) count *= each;
  return counts;
}

}  // namespace shardloss::detail
