#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "sample.hpp"
#include "shardloss/plan.hpp"

namespace shardloss::test {
namespace {

TEST(Shards, AreAsEvenAsCanBeAndTheFirstGetOneMore) {
  const std::vector<Shard> shards = make_shards(plain_problem(1, 1, 11), 3);
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_EQ(shards[0].width, 4);
  EXPECT_EQ(shards[1].width, 4);
  EXPECT_EQ(shards[2].width, 3);
  EXPECT_EQ(shards[1].first, 4);
  EXPECT_EQ(shards[2].first, 8);
}

TEST(Shards, LeaveRanksEmptyWhenTheVocabularyIsSmaller) {
  const std::vector<Shard> shards = make_shards(plain_problem(1, 1, 2), 5);
  EXPECT_EQ(shards[1].width, 1);
  EXPECT_EQ(shards[2].width, 0);
  EXPECT_EQ(shards[4].first, 2);
}

TEST(Shards, CountTheTrueVocabularyOfEach) {
  Problem problem = plain_problem(1, 1, 5);
  problem.vocab_padded = 8;
  problem.shard_widths = {3, 0, 4, 1};
  const std::vector<Shard> shards = make_shards(problem, 4);
  EXPECT_EQ(shards[0].vocab, 3);
  EXPECT_EQ(shards[1].vocab, 0);
  EXPECT_EQ(shards[2].vocab, 2);
  EXPECT_EQ(shards[2].first, 3);
  EXPECT_EQ(shards[3].vocab, 0);
}

TEST(Shards, RefuseWidthsThatDoNotSumToTheVocabulary) {
  Problem problem = plain_problem(1, 1, 8);
  problem.shard_widths = {8, 8};  // each rank holds the whole head: T3
  expect_error(ErrorCode::mismatch, {"16", "8"}, [&] { make_shards(problem, 2); });
  problem.shard_widths = {4, 3};
  expect_error(ErrorCode::mismatch, {"7", "8"}, [&] { make_shards(problem, 2); });
}

TEST(Shards, RefuseAnotherNumberOfWidthsThanRanks) {
  Problem problem = plain_problem(1, 1, 8);
  problem.shard_widths = {4, 4};
  expect_error(ErrorCode::mismatch, {"2", "3"}, [&] { make_shards(problem, 3); });
}

TEST(Shards, RefuseNegativeWidths) {
  Problem problem = plain_problem(1, 1, 8);
  problem.shard_widths = {9, -1};
  expect_error(ErrorCode::invalid_argument, {"shard_widths[1]", "-1"},
               [&] { make_shards(problem, 2); });
}

}  // namespace
}  // namespace shardloss::test
