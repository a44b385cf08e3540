// Faults on GPUs, in two processes: the other one gets out of wait() and of a stream
// synchronisation within the deadline + 1.5 s, with an error and without a finite loss, and its
// process ends; where both live on, a fresh group in the same processes gives right numbers.
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <ostream>
#include <thread>

#include "captured_graph.hpp"
#include "faulty_transport.hpp"
#include "two_processes.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Long enough for NCCL to connect two ranks of one host for the second time.
constexpr std::chrono::milliseconds deadline = 2500ms;
constexpr std::chrono::milliseconds slack = 1500ms;
constexpr std::chrono::milliseconds patient = 60s;

class GpuFaults : public testing::Test {
 protected:
  void SetUp() override {
    static const int gpus = count_gpus();
    if (gpus == 0) GTEST_SKIP() << "no GPU";
    const int needed = gpus_needed(2);
    if (gpus < needed) GTEST_SKIP() << "needs " << needed << " GPUs, found " << gpus;
  }
};

// ---- What both processes do.

Problem three_chunks(Layout layout = Layout::replicated) {
  Problem problem = plain_problem(12, 8, 23);
  problem.bias = true;
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 4};
  return problem;
}

Communicator new_group(const Member& member, std::chrono::milliseconds its_deadline) {
  return from_nccl_id(member.share_id(), 2, member.rank(), member.device(), its_deadline);
}

/// A Loss over a group with its tensors.
struct Trial {
  Trial(const Member& member, const Sample& made, const Communicator& group)
      : sample(made),
        loss(sample.problem, group, member.device()),
        tensors(sample, member.rank(), 2, member.device()) {}

  void enqueue() const {
    loss.forward_backward(tensors.inputs(), tensors.outputs(), tensors.upstreams(),
                          tensors.gradients(), {test_stream()});
  }
  void run() const {
    enqueue();
    loss.wait(test_stream());
  }
  bool loss_is_nan() const { return std::isnan(tensors.loss.read().front()); }

  Sample sample;
  Loss loss;
  Tensors tensors;
};

Sample usual_sample(Layout layout = Layout::replicated) { return fill(three_chunks(layout), 2, 1); }

/// The replicated results and this rank's shard of the weight gradient against the reference.
void expect_right(const Member& member, const Trial& t) {
  const ReferenceResult exact = reference(t.sample.data);
  Answer answer = t.tensors.answer();
  const Shard shard = t.loss.plan().shard;
  const auto d = static_cast<std::size_t>(t.sample.problem.hidden);
  for (std::size_t i = 0; i < answer.grad_weight.size(); ++i)
    EXPECT_NEAR(answer.grad_weight[i],
                exact.grad_weight[static_cast<std::size_t>(shard.first) * d + i], 1e-3)
        << "rank " << member.rank() << ", weight gradient " << i;
  answer.grad_weight.clear();
  answer.grad_bias.clear();
  EXPECT_EQ(differences(t.sample, answer, t.loss.plan()), "") << "rank " << member.rank();
}

/// A group as good as new.
void expect_fresh_group_is_right(const Member& member) {
  const Communicator group = new_group(member, patient);
  const Trial t(member, usual_sample(), group);
  t.run();
  expect_right(member, t);
}

/// Loads kernels and libraries, so that no first time falls into a short deadline.
void warm_up(const Member& member) {
  SHARDLOSS_TEST_CUDA_CALL(cudaSetDevice(member.device().index));
  expect_fresh_group_is_right(member);
}

/// A group with the short deadline, in which a call has already gone right.
Communicator tested_group(const Member& member) {
  (void)member.meet();
  const Communicator group = new_group(member, deadline);
  const Trial t(member, usual_sample(), group);
  t.run();
  expect_right(member, t);
  (void)member.meet();
  return group;
}

struct Outcome {
  std::optional<Error> error;
  Clock::duration took{};

  std::string text() const { return error ? error->what() : "no error"; }
  bool is(ErrorCode code) const { return error && error->code() == code; }
};

template <class Action>
Outcome outcome_of(const Action& action) {
  Outcome result;
  const auto begin = Clock::now();
  try {
    action();
  } catch (const Error& error) {
    result.error = error;
  }
  result.took = Clock::now() - begin;
  return result;
}

/// The process that has done nothing wrong got out, and knows that it has no result.
void expect_told(const Trial& t, const Outcome& outcome) {
  EXPECT_TRUE(outcome.is(ErrorCode::timeout) || outcome.is(ErrorCode::peer)) << outcome.text();
  EXPECT_LE(outcome.took, deadline + slack) << outcome.text();
  EXPECT_TRUE(t.loss.communicator().failed());
  EXPECT_TRUE(t.loss_is_nan());
  // Sticky: later calls throw the same and touch nothing.
  const Outcome again = outcome_of([&] { t.run(); });
  EXPECT_EQ(again.text(), outcome.text());
  EXPECT_LT(again.took, 1s);
}

void expect_both_clean(const std::array<Ending, 2>& endings) {
  for (int rank = 0; rank < 2; ++rank) {
    const Ending& ending = endings[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(ending.hung_in_body) << "rank " << rank;
    EXPECT_FALSE(ending.hung_at_exit) << "rank " << rank;
    EXPECT_TRUE(ending.clean()) << "rank " << rank << ", status " << ending.status;
  }
}

// ---- A peer that is late, stands still or dies in the middle of a call.

/// How the other process waits.
enum class Waiting { in_wait, in_stream };

struct Case {
  Misdeed misdeed;
  const char* step;
  std::int64_t chunk;  ///< of three
  Layout layout;
  Waiting waiting;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << (c.misdeed == Misdeed::sleep  ? "sleep"
           : c.misdeed == Misdeed::stop ? "stop"
                                        : "kill")
       << " at " << c.step << " of chunk " << c.chunk << ", " << name(c.layout)
       << (c.waiting == Waiting::in_wait ? ", in wait" : ", in a stream synchronisation");
}

/// The call of rank 0, which waits for the other.
void wait_for_faulty_peer(const Member& member, const Case& c, const Communicator& group) {
  const Trial t(member, usual_sample(c.layout), group);
  const Outcome outcome = outcome_of([&] {
    t.enqueue();
    if (c.waiting == Waiting::in_stream) cudaStreamSynchronize(test_cuda_stream());
    t.loss.wait(test_stream());
  });
  expect_told(t, outcome);
  if (c.misdeed != Misdeed::kill) {
    // The other's watchdog may have been first, by what the two calls began apart.
    EXPECT_GE(outcome.took, deadline - 200ms) << outcome.text();
  }
}

/// The call of rank 1, in which it happens.
void misbehave(const Member& member, const Case& c, const Communicator& group) {
  const Fault fault{
      .misdeed = c.misdeed, .step = c.step, .chunk = c.chunk, .duration = 2 * deadline};
  const auto transport = std::make_shared<FaultyTransport>(group, fault);
  const Trial t(member, usual_sample(c.layout), Communicator(transport));
  const Outcome outcome = outcome_of([&] {
    t.run();
    group.transport().check();  // what wraps a group does not see what its watchdog does
  });
  EXPECT_TRUE(transport->done()) << "the pass has no such step";
  EXPECT_LE(outcome.took, 3 * deadline + slack) << outcome.text();
  // Late, or left alone: never a result, though what the other had sent may look like one.
  EXPECT_TRUE(outcome.error);
  EXPECT_TRUE(group.failed());
  EXPECT_TRUE(t.loss_is_nan());
}

class GpuPeer : public GpuFaults, public testing::WithParamInterface<Case> {};

TEST_P(GpuPeer, OthersGetOutInTimeAndLiveOn) {
  const Case& c = GetParam();
  const auto endings = in_two_processes([&](const Member& member) {
    warm_up(member);
    {
      const Communicator group = tested_group(member);
      if (member.rank() == 0)
        wait_for_faulty_peer(member, c, group);
      else
        misbehave(member, c, group);
    }
    if (c.misdeed != Misdeed::kill) expect_fresh_group_is_right(member);
  });
  if (c.misdeed != Misdeed::kill) return expect_both_clean(endings);
  EXPECT_TRUE(endings[0].clean()) << "status " << endings[0].status;
  EXPECT_FALSE(endings[0].hung_in_body);
  EXPECT_FALSE(endings[0].hung_at_exit);
  EXPECT_TRUE(endings[1].killed_by(SIGKILL)) << "status " << endings[1].status;
}

INSTANTIATE_TEST_SUITE_P(
    Faults, GpuPeer,
    testing::Values(Case{Misdeed::sleep, "logits", 0, Layout::replicated, Waiting::in_stream},
                    Case{Misdeed::sleep, "grad_weight", 1, Layout::row_sharded, Waiting::in_wait},
                    Case{Misdeed::stop, "grad_hidden", 2, Layout::replicated, Waiting::in_wait},
                    Case{Misdeed::stop, "combine", 0, Layout::row_sharded, Waiting::in_stream},
                    Case{Misdeed::kill, "grad_hidden", 1, Layout::replicated, Waiting::in_stream},
                    Case{Misdeed::kill, "logits", 2, Layout::row_sharded, Waiting::in_wait}));

// ---- Polite failures.

TEST_F(GpuFaults, ACallThatOneRankRefusesIsATimeoutOfTheOther) {
  expect_both_clean(in_two_processes([](const Member& member) {
    warm_up(member);
    {
      const Communicator group = tested_group(member);
      const Trial t(member, usual_sample(), group);
      if (member.rank() == 0) {
        expect_told(t, outcome_of([&] { t.run(); }));
      } else {
        Inputs inputs = t.tensors.inputs();
        inputs.bias = {};
        expect_error(ErrorCode::invalid_argument, {"bias"}, [&] {
          t.loss.forward_backward(inputs, t.tensors.outputs(), {}, t.tensors.gradients(),
                                  {test_stream()});
        });
      }
      (void)member.meet();
    }
    expect_fresh_group_is_right(member);
  }));
}

TEST_F(GpuFaults, AbortFromAnotherThreadEndsAStuckCall) {
  expect_both_clean(in_two_processes([](const Member& member) {
    warm_up(member);
    {
      const Communicator group = tested_group(member);
      const Trial t(member, usual_sample(), group);  // collective
      if (member.rank() == 0) {
        std::thread other([&] {
          std::this_thread::sleep_for(300ms);
          group.abort();
          group.abort();
        });
        const Outcome outcome = outcome_of([&] { t.run(); });
        other.join();
        EXPECT_TRUE(outcome.is(ErrorCode::peer)) << outcome.text();
        EXPECT_LT(outcome.took, slack) << outcome.text();
        EXPECT_TRUE(t.loss_is_nan());
        (void)member.meet();
      } else {
        (void)member.meet();
        group.abort();
      }
    }
    expect_fresh_group_is_right(member);
  }));
}

// ---- Ranks that disagree in a call.

/// What rank 1 does otherwise in a call.
struct Difference {
  const char* field;
  Sample others;  ///< rank 1's data
  bool forward_only;
  bool recoverable;
};

std::vector<Difference> differences_in_a_call() {
  const Sample usual = usual_sample();
  Sample targets = usual;
  targets.data.targets[5] = (targets.data.targets[5] + 1) % usual.problem.vocab;
  if (targets.data.targets[5] < 0) targets.data.targets[5] = 0;
  return {{"rows", fill_rows(usual.problem, 8, 2, 1), false, false},
          {"operation", usual, true, false},
          {"targets", targets, false, true}};
}

void expect_disagreement(const Member& member, const Difference& difference,
                         const Communicator& group) {
  SCOPED_TRACE(std::string(difference.field) + ", rank " + std::to_string(member.rank()));
  const Trial t(member, member.rank() == 0 ? usual_sample() : difference.others, group);
  const Outcome outcome = outcome_of([&] {
    if (member.rank() == 1 && difference.forward_only)
      t.loss.forward(t.tensors.inputs(), t.tensors.outputs(), nullptr, {test_stream()});
    else
      t.enqueue();
    t.loss.wait(test_stream());
  });
  EXPECT_TRUE(outcome.is(ErrorCode::mismatch)) << outcome.text();
  EXPECT_NE(outcome.text().find(difference.field), std::string::npos) << outcome.text();
  EXPECT_LE(outcome.took, deadline + slack) << outcome.text();
  EXPECT_TRUE(t.loss_is_nan());
  EXPECT_EQ(group.failed(), !difference.recoverable);
  if (!difference.recoverable) return;
  (void)member.meet();
  const Trial next(member, usual_sample(), group);
  next.run();
  expect_right(member, next);
}

TEST_F(GpuFaults, RanksThatDisagreeInACallAllGetAnError) {
  expect_both_clean(in_two_processes([](const Member& member) {
    warm_up(member);
    for (const Difference& difference : differences_in_a_call()) {
      {
        const Communicator group = tested_group(member);
        expect_disagreement(member, difference, group);
      }
      expect_fresh_group_is_right(member);
    }
  }));
}

// ---- Communicators of the caller, graphs that are kept.

/// Both processes share a communicator of their own, and a call over it goes right. Rank 0 is alone
/// in the next one: told so in time, it has `then(trial, owned)` before rank 1 goes on.
template <class Then>
void borrow_and_leave_rank_0_alone(const Member& member, AbortPolicy policy, const Then& then) {
  warm_up(member);
  ncclComm_t owned = nullptr;
  ASSERT_EQ(ncclCommInitRank(&owned, 2, member.share_id(), member.rank()), ncclSuccess);
  {
    const Communicator group = borrow_nccl(owned, member.device(), policy, deadline);
    Trial t(member, usual_sample(), group);
    t.run();
    expect_right(member, t);
    if (member.rank() == 0) {
      const Outcome outcome = outcome_of([&] { t.run(); });
      EXPECT_TRUE(outcome.is(ErrorCode::timeout)) << outcome.text();
      EXPECT_LE(outcome.took, deadline + slack) << outcome.text();
      then(t, owned);
      EXPECT_EQ(cudaStreamSynchronize(test_cuda_stream()), cudaSuccess);
      EXPECT_TRUE(t.loss_is_nan());
    }
    (void)member.meet();
  }
  if (member.rank() == 1) {
    EXPECT_EQ(ncclCommAbort(owned), ncclSuccess);
  }
  expect_fresh_group_is_right(member);
}

TEST_F(GpuFaults, AForbiddenAbortIsTheOwnersToMake) {
  expect_both_clean(in_two_processes([](const Member& member) {
    borrow_and_leave_rank_0_alone(member, AbortPolicy::never, [](Trial& t, ncclComm_t owned) {
      // What the stuck pass may still use is left to it: nothing waits.
      EXPECT_LE(outcome_of([&] { const Loss gone = std::move(t.loss); }).took, 1s);
      EXPECT_EQ(cudaStreamQuery(test_cuda_stream()), cudaErrorNotReady);
      EXPECT_EQ(ncclCommAbort(owned), ncclSuccess);
    });
  }));
}

TEST_F(GpuFaults, AnAllowedAbortFreesTheStreamOfABorrowedCommunicator) {
  expect_both_clean(in_two_processes([](const Member& member) {
    borrow_and_leave_rank_0_alone(member, AbortPolicy::allowed, [](Trial&, ncclComm_t) {});
  }));
}

// NCCL's destroy waits for graphs that hold its operations: a program that kept one hung at its
// end.
TEST_F(GpuFaults, AProcessThatKeepsItsGraphEnds) {
  expect_both_clean(in_two_processes([](const Member& member) {
    warm_up(member);
    const Communicator group = tested_group(member);
    const Trial t(member, usual_sample(), group);
    t.run();
    auto* const kept = new CapturedGraph([&] { t.enqueue(); });
    kept->replay();
    t.loss.wait(test_stream());
    expect_right(member, t);
  }));
}

}  // namespace
}  // namespace shardloss::test
