// Ranks that construct different things: the same Error on all of them, at once, and a group that
// is as good as before.
#include <sys/resource.h>

#include <fstream>
#include <functional>
#include <vector>

#include "expect_error.hpp"
#include "fault_call.hpp"
#include "shardloss/embedding.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;

struct Difference {
  const char* name;
  std::function<void(Problem&)> change;
  ErrorCode code;
  std::vector<std::string_view> parts;  ///< of the message
};

const std::vector<Difference>& differences_between_ranks() {
  static const std::vector<Difference> all = {
      {"vocab",
       [](Problem& p) { p.vocab = p.vocab_padded = 24; },
       ErrorCode::mismatch,
       {"vocab", "24", "23"}},
      {"hidden", [](Problem& p) { p.hidden = 16; }, ErrorCode::mismatch, {"hidden", "16", "8"}},
      {"max_rows",
       [](Problem& p) { p.max_rows = 13; },
       ErrorCode::mismatch,
       {"max_rows", "13", "12"}},
      {"dtype", [](Problem& p) { p.dtype = DType::bfloat16; }, ErrorCode::mismatch, {"dtype"}},
      {"layout",
       [](Problem& p) { p.layout = Layout::row_sharded; },
       ErrorCode::mismatch,
       {"layout"}},
      {"bias", [](Problem& p) { p.bias = false; }, ErrorCode::mismatch, {"bias"}},
      {"reduction",
       [](Problem& p) { p.reduction = Reduction::sum; },
       ErrorCode::mismatch,
       {"reduction"}},
      {"ignore_index",
       [](Problem& p) { p.ignore_index = -1; },
       ErrorCode::mismatch,
       {"ignore_index", "-1", "-100"}},
      {"label_smoothing",
       [](Problem& p) { p.label_smoothing = 0.125; },
       ErrorCode::mismatch,
       {"label_smoothing", "0.125"}},
      {"chunk_rows",
       [](Problem& p) { p.chunking.value = 5; },
       ErrorCode::mismatch,
       {"chunking", "5", "4"}},
      {"accumulation",
       [](Problem& p) { p.accumulation = Accumulation::compact; },
       ErrorCode::mismatch,
       {"accumulation"}},
      {"grad_hidden",
       [](Problem& p) { p.grad_hidden = GradDType::none; },
       ErrorCode::mismatch,
       {"grad_hidden"}},
      {"widths of the shards",
       [](Problem& p) {
         p.shard_widths.assign(static_cast<std::size_t>(ranks()), 0);
         p.shard_widths.front() = p.vocab;
       },
       ErrorCode::mismatch,
       {"shard_widths"}},
      {"bad argument", [](Problem& p) { p.hidden = -3; }, ErrorCode::mismatch, {"hidden", "-3"}},
  };
  return all;
}

TEST(Construction, AnyDifferenceIsTheSameErrorOnEveryRankAtOnce) {
  SHARDLOSS_NEEDS_PEERS();
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, 10s);
  for (const Difference& difference : differences_between_ranks()) {
    for (const int odd : {0, ranks() - 1}) {
      Problem problem = three_chunks();
      if (rank() == odd) difference.change(problem);
      const Outcome result = outcome([&] { Loss(problem, group_of_all); });
      EXPECT_EQ(name(result.code()), name(difference.code))
          << difference.name << ": " << result.text();
      EXPECT_LT(result.took, 1s) << difference.name;
      for (const std::string_view part : difference.parts)
        EXPECT_NE(result.text().find(part), std::string::npos)
            << part << " is not in: " << result.text();
      EXPECT_NE(result.text().find("rank"), std::string::npos) << result.text();
      const std::string text = result.text();
      EXPECT_TRUE(same_everywhere(std::as_bytes(std::span(text.data(), text.size())))) << text;
    }
  }
  EXPECT_FALSE(group_of_all.failed());
  EXPECT_EQ(check(fill(three_chunks(), ranks(), 1), group_of_all, Way::fused), "");
}

TEST(Construction, ABadArgumentOfAllRanksIsNamedOnAll) {
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, 10s);
  Problem problem = three_chunks();
  problem.label_smoothing = 1.5;
  expect_error(ErrorCode::invalid_argument, {"label_smoothing", "1.5"},
               [&] { Loss(problem, group_of_all); });
  EXPECT_FALSE(group_of_all.failed());
}

TEST(Construction, ALossDoesNotMeetAnEmbedding) {
  SHARDLOSS_NEEDS_PEERS();
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, 10s);
  expect_error(ErrorCode::mismatch, {"object"}, [&] {
    if (last_rank())
      VocabParallelEmbedding(three_chunks(), group_of_all);
    else
      Loss(three_chunks(), group_of_all);
  });
  EXPECT_FALSE(group_of_all.failed());
}

/// Lets this process have `more` bytes of address space beyond what it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t more) {
    getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + more;
    setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(Construction, AFailedAllocationOfOneRankIsOutOfMemoryOnAll) {
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, 10s);
  Problem problem = plain_problem(8000, 8, 20000);
  problem.chunking = {Chunking::Rule::rows, 8000};  // logits of 640 MB over all ranks
  for (const int odd : {0, ranks() - 1}) {
    const Outcome result = outcome([&] {
      std::optional<MemoryLimit> limit;
      if (rank() == odd) limit.emplace(32u << 20);
      Loss(problem, group_of_all);
    });
    EXPECT_EQ(name(result.code()), name(ErrorCode::out_of_memory)) << result.text();
    EXPECT_LT(result.took, 1s);
    if (ranks() > 1) {
      EXPECT_NE(result.text().find("rank " + std::to_string(odd)), std::string::npos)
          << result.text();
    }
  }
  EXPECT_FALSE(group_of_all.failed());
  EXPECT_EQ(check(fill(three_chunks(), ranks(), 1), group_of_all, Way::fused), "");
}

TEST(Construction, AMissingRankIsATimeout) {
  SHARDLOSS_NEEDS_PEERS();
  const Communicator group_of_all = from_mpi(MPI_COMM_WORLD, fault_deadline);
  if (last_rank()) return;
  const Outcome result = outcome([&] { Loss(three_chunks(), group_of_all); });
  EXPECT_EQ(name(result.code()), name(ErrorCode::timeout)) << result.text();
  EXPECT_GE(result.took, fault_deadline);
  EXPECT_LE(result.took, fault_deadline + fault_slack);
  EXPECT_TRUE(group_of_all.failed());
}

}  // namespace
}  // namespace shardloss::test
