// One rank fails, is late or stands still at a step of the first, a middle and the last chunk: the
// others get out between the deadline and 1.5 s after it.
#include <cstdlib>
#include <iostream>
#include <ostream>
#include <random>

#include "fault_call.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;

const char* name_of(Misdeed misdeed) {
  switch (misdeed) {
    case Misdeed::none: return "none";
    case Misdeed::fail: return "fail";
    case Misdeed::skip: return "skip";
    case Misdeed::alter: return "alter";
    case Misdeed::sleep: return "sleep";
    case Misdeed::stop: return "stop";
    case Misdeed::kill: return "kill";
  }
  return "";
}

struct Case {
  Misdeed misdeed;
  const char* step;
  std::int64_t chunk;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c.misdeed) << " at " << c.step << " of chunk " << c.chunk;
}

class Step : public testing::TestWithParam<Case> {};

TEST_P(Step, OfOneRankIsSeenByTheOthersAtTheDeadline) {
  SHARDLOSS_NEEDS_PEERS();
  const Case& c = GetParam();
  const int odd = c.chunk == 1 ? 0 : ranks() - 1;
  Fault fault;
  if (rank() == odd)
    fault = {
        .misdeed = c.misdeed, .step = c.step, .chunk = c.chunk, .duration = 2 * fault_deadline};
  Stage& s = stage(fill(three_chunks(), ranks(), 20), fault);
  MPI_Barrier(MPI_COMM_WORLD);
  const Outcome result = outcome([&] { run(s.loss, s.tensors, Way::fused); });
  EXPECT_EQ(s.finite_wrong_loss(), "");
  if (rank() == odd) {
    EXPECT_TRUE(s.transport->done()) << "the pass has no such step";
    EXPECT_LE(result.took, 3 * fault_deadline + fault_slack);
    if (c.misdeed == Misdeed::fail) {
      EXPECT_EQ(name(result.code()), name(ErrorCode::internal)) << result.text();
    }
    return;
  }
  EXPECT_TRUE(result.error) << "no error";
  EXPECT_LE(result.took, fault_deadline + fault_slack) << result.text();
  EXPECT_TRUE(s.communicator.failed());
  if (c.misdeed == Misdeed::skip) return;  // headers may tell sooner
  EXPECT_GE(result.took, fault_deadline) << result.text();
  EXPECT_TRUE(result.code() == ErrorCode::timeout || result.code() == ErrorCode::peer)
      << result.text();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Misdeed misdeed : {Misdeed::fail, Misdeed::skip, Misdeed::sleep, Misdeed::stop}) {
    for (const std::int64_t chunk : {0, 1, 2}) {
      // Before the exchange of the chunk, and before its reduction.
      const bool early = (static_cast<std::int64_t>(misdeed) + chunk) % 2 == 0;
      all.push_back({misdeed, early ? "logits" : "grad_hidden", chunk});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Faults, Step, testing::ValuesIn(cases()));

// Random faults. The seed is printed; SHARDLOSS_FAULT_SEED repeats one, SHARDLOSS_FAULTS says how
// many there are.

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct RandomFault {
  Layout layout;
  Way way;
  int odd;
  Fault fault;
  std::string text;
};

RandomFault draw(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomFault drawn;
  drawn.layout = random() % 2 == 0 ? Layout::replicated : Layout::row_sharded;
  drawn.way = random() % 2 == 0 ? Way::fused : Way::two_step;
  drawn.odd = static_cast<int>(random() % static_cast<std::uint64_t>(ranks()));
  constexpr Misdeed misdeeds[] = {Misdeed::none, Misdeed::fail,  Misdeed::skip,
                                  Misdeed::skip, Misdeed::sleep, Misdeed::stop};
  drawn.fault.misdeed = misdeeds[random() % std::size(misdeeds)];
  drawn.fault.collective = static_cast<std::int64_t>(random() % 16);
  drawn.fault.duration = 2 * fault_deadline;
  drawn.text = std::string(name_of(drawn.fault.misdeed)) + " of rank " + std::to_string(drawn.odd) +
               " of " + std::to_string(ranks()) + " at collective " +
               std::to_string(drawn.fault.collective) +
               (drawn.layout == Layout::replicated ? ", replicated" : ", row_sharded") +
               (drawn.way == Way::fused ? ", fused" : ", two_step") +
               ", SHARDLOSS_FAULT_SEED=" + std::to_string(seed) + " SHARDLOSS_FAULTS=1";
  return drawn;
}

void run_random_fault(std::uint64_t seed) {
  const RandomFault drawn = draw(seed);
  const std::string& what = drawn.text;
  Stage& s = stage(fill(three_chunks(drawn.layout), ranks(), seed),
                   rank() == drawn.odd ? drawn.fault : Fault{});
  MPI_Barrier(MPI_COMM_WORLD);
  const Outcome result = outcome([&] { run(s.loss, s.tensors, drawn.way); });
  EXPECT_EQ(s.finite_wrong_loss(), "") << what;
  EXPECT_LE(result.took, 3 * fault_deadline + fault_slack) << what << ": " << result.text();
  if (rank() != drawn.odd) {
    EXPECT_LE(result.took, fault_deadline + fault_slack) << what << ": " << result.text();
  }
  const bool befell = count(s.transport->done()) > 0;
  const int wrong = count(result.error.has_value());
  if (!befell) {
    EXPECT_EQ(wrong, 0) << what << " did not happen, but: " << result.text();
    return;
  }
  // A rank that was late with nothing else to send harms nobody.
  if (drawn.fault.misdeed != Misdeed::fail && drawn.fault.misdeed != Misdeed::skip) return;
  // Where nobody needed what the rank left out (a sum of its own rows only), the loss is right, and
  // the next call sees it.
  if (wrong == 0) {
    s.tensors.reset();
    const Outcome next = outcome([&] { run(s.loss, s.tensors, drawn.way); });
    EXPECT_GE(count(next.error.has_value()), 1) << what << ": nobody noticed";
    EXPECT_EQ(s.finite_wrong_loss(), "") << what << ", in the next call";
  }
}

TEST(RandomFaults, EndInAnErrorOrARightResultWithinTheDeadline) {
  SHARDLOSS_NEEDS_PEERS();
  const std::uint64_t first = number_from("SHARDLOSS_FAULT_SEED", 1);
  const std::uint64_t faults = number_from("SHARDLOSS_FAULTS", 50);
  if (rank() == 0) std::cout << "SHARDLOSS_FAULT_SEED=" << first << ", " << faults << " faults\n";
  for (std::uint64_t i = 0; i < faults; ++i) run_random_fault(first + i);
}

}  // namespace
}  // namespace shardloss::test
