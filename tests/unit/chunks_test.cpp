#include "chunks.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "sample.hpp"

namespace shardloss::detail {
namespace {

TEST(Chunks, CoverEveryRowOnceInOrder) {
  for (std::int64_t rows : {0, 1, 7, 8, 9, 64, 100}) {
    for (std::int64_t chunk_rows : {1, 3, 8, 200}) {
      for (int slots : {1, 2}) {
        std::int64_t next = 0;
        const std::vector<Chunk> chunks = cut_rows(rows, chunk_rows, slots);
        for (std::size_t i = 0; i < chunks.size(); ++i) {
          const Chunk& chunk = chunks[i];
          EXPECT_EQ(chunk.index, static_cast<std::int64_t>(i));
          EXPECT_EQ(chunk.slot, static_cast<int>(i) % slots);
          EXPECT_EQ(chunk.first, next);
          EXPECT_GE(chunk.rows, 1);
          EXPECT_LE(chunk.rows, chunk_rows);
          EXPECT_EQ(chunk.own_begin, 0);
          EXPECT_EQ(chunk.own_rows, chunk.rows);
          EXPECT_EQ(chunk.own_first, chunk.first);
          EXPECT_EQ(chunk.last, i + 1 == chunks.size());
          next += chunk.rows;
        }
        EXPECT_EQ(next, rows);
      }
    }
  }
}

/// Every rank must see the same chunks, and each its own rows once, in order.
void expect_group_chunks(const std::vector<std::int64_t>& split, std::int64_t chunk_rows) {
  const auto ranks = static_cast<int>(split.size());
  const std::vector<Chunk> first = cut_group_rows(split, chunk_rows, 2, 0);
  std::int64_t total = 0;
  for (const Chunk& chunk : first) {
    EXPECT_EQ(chunk.first, total);
    EXPECT_LE(chunk.rows, chunk_rows);
    EXPECT_EQ(std::accumulate(chunk.segments.begin(), chunk.segments.end(), std::int64_t{0}),
              chunk.rows);
    total += chunk.rows;
  }
  EXPECT_EQ(total, std::accumulate(split.begin(), split.end(), std::int64_t{0}));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Chunk> chunks = cut_group_rows(split, chunk_rows, 2, rank);
    ASSERT_EQ(chunks.size(), first.size());
    std::int64_t own = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Chunk& chunk = chunks[i];
      EXPECT_EQ(chunk.segments, first[i].segments);
      EXPECT_EQ(chunk.own_first, own);
      EXPECT_EQ(chunk.own_rows, chunk.segments[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(chunk.own_begin, std::accumulate(chunk.segments.begin(),
                                                 chunk.segments.begin() + rank, std::int64_t{0}));
      own += chunk.own_rows;
    }
    EXPECT_EQ(own, split[static_cast<std::size_t>(rank)]);
  }
}

TEST(Chunks, OfAGroupCoverEveryRanksRowsOnceInOrder) {
  const std::vector<std::vector<std::int64_t>> splits = {
      {0}, {7}, {5, 0, 3}, {0, 0, 0}, {1, 1, 1}, {100, 1, 0, 3, 17}, {0, 0, 64}, {8, 8}};
  for (const auto& split : splits)
    for (std::int64_t chunk_rows : {1, 2, 3, 5, 8, 13, 200}) expect_group_chunks(split, chunk_rows);
}

TEST(Chunks, OfAGroupAreNotManyMoreThanRowsNeed) {
  const std::vector<std::int64_t> split = {4096, 4095, 4097, 4096};
  EXPECT_LE(cut_group_rows(split, 1024, 2, 0).size(), 18u);
}

// Against counting up one by one, by the chunks themselves.
TEST(Chunks, OfAGroupAreAsFewAsKeepToTheLimit) {
  const std::vector<std::vector<std::int64_t>> splits = {{5, 3},       {1, 5, 9},        {40, 1, 7},
                                                         {13, 13, 14}, {100, 99, 3, 57}, {64, 64}};
  for (const auto& split : splits) {
    const auto ranks = static_cast<std::int64_t>(split.size());
    for (std::int64_t chunk_rows = ranks; chunk_rows < 40; ++chunk_rows) {
      const std::int64_t chunks = count_group_chunks(split, chunk_rows);
      EXPECT_EQ(chunks, test::fewest_chunks(split, chunk_rows)) << chunk_rows;
      EXPECT_EQ(static_cast<std::int64_t>(cut_group_rows(split, chunk_rows, 2, 0).size()), chunks);
    }
  }
}

TEST(Chunks, OfHugeGroupsAreCountedAtOnce) {
  const std::int64_t rows = std::int64_t{1} << 38;
  const std::vector<std::int64_t> split = {rows, rows, rows, rows - 1};
  EXPECT_EQ(count_group_chunks(split, 512), rows / 128);
  EXPECT_EQ(count_group_chunks(split, 5), rows);
}

}  // namespace
}  // namespace shardloss::detail
