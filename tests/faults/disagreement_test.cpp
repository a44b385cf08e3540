// Ranks that disagree in a call: an Error on every rank, never a finite wrong loss. What leaves the
// group good is followed by a call that must be right.
#include <functional>

#include "fault_call.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;

/// The call of a rank whose part may differ.
void call(const Stage& s, const Inputs& inputs, const Outputs& outputs) {
  s.loss.forward_backward(inputs, outputs, s.tensors.upstreams(), s.tensors.gradients());
  s.loss.wait();
}

/// Checks one rank's outcome of a disagreement that is found in the call's first exchange.
void expect_disagreement(const Stage& s, const Outcome& result, ErrorCode code, bool fatal,
                         std::string_view part) {
  EXPECT_EQ(name(result.code()), name(code)) << result.text();
  EXPECT_NE(result.text().find(part), std::string::npos) << part << " is not in: " << result.text();
  EXPECT_LT(result.took, fault_deadline + fault_slack);
  EXPECT_EQ(s.communicator.failed(), fatal);
  for (const double value : s.tensors.loss.read()) EXPECT_FALSE(std::isfinite(value)) << value;
}

TEST(Disagreement, InTargetsIsAMismatchFromWhichAllRecover) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 3));
  for (const int odd : {0, ranks() - 1}) {
    Tensors other(s.sample, rank(), ranks(), {});
    std::vector<std::int64_t> targets = s.sample.data.targets;
    targets[7] = targets[7] == 4 ? 5 : 4;
    if (rank() == odd) other.targets.write(targets);
    s.tensors.reset();
    const Outcome result = outcome([&] { call(s, other.inputs(), s.tensors.outputs()); });
    expect_disagreement(s, result, ErrorCode::mismatch, false, "targets");
    EXPECT_EQ(s.works(), "") << "after a disagreement in targets";
  }
}

TEST(Disagreement, InArgumentsThatOneRankRefusesReachesAllAndAllRecover) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 4));
  for (const int odd : {0, ranks() - 1}) {
    Inputs inputs = s.tensors.inputs();
    if (rank() == odd) inputs.weight = {};
    s.tensors.reset();
    const Outcome result = outcome([&] { call(s, inputs, s.tensors.outputs()); });
    expect_disagreement(s, result, ErrorCode::invalid_argument, false,
                        rank() == odd ? "weight" : "rank " + std::to_string(odd));
    EXPECT_EQ(s.works(), "") << "after refused arguments";
  }
}

TEST(Disagreement, InRowsIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 5));
  const Sample fewer = fill_rows(three_chunks(), 9, ranks(), 5);
  const Tensors other(fewer, rank(), ranks(), {});
  const Outcome result = outcome([&] {
    if (last_rank())
      s.loss.forward_backward(other.inputs(), other.outputs(), {}, other.gradients());
    else
      call(s, s.tensors.inputs(), s.tensors.outputs());
  });
  expect_disagreement(s, result, ErrorCode::mismatch, true, "rows");
  const Outcome again = outcome([&] { call(s, s.tensors.inputs(), s.tensors.outputs()); });
  EXPECT_EQ(again.text(), result.text()) << "the first error, again";
  EXPECT_LT(again.took, 100ms);
}

TEST(Disagreement, InRowsPerRankIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill_rows(three_chunks(Layout::row_sharded), 9, ranks(), 6));
  Inputs inputs = s.tensors.inputs();
  std::vector<std::int64_t> rows(inputs.rows_per_rank.begin(), inputs.rows_per_rank.end());
  // The last rank believes that the first one brings more.
  if (last_rank()) {
    rows.front() += 1;
    inputs.rows_per_rank = rows;
  }
  const Outcome result = outcome([&] { call(s, inputs, s.tensors.outputs()); });
  expect_disagreement(s, result, ErrorCode::mismatch, true, "rows_per_rank, as a hash");
}

TEST(Disagreement, InOutputsIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 7));
  Outputs outputs = s.tensors.outputs();
  if (last_rank()) outputs.lse = {};
  const Outcome result = outcome([&] { call(s, s.tensors.inputs(), outputs); });
  expect_disagreement(s, result, ErrorCode::mismatch, true, "outputs");
}

TEST(Disagreement, InTheOperationIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 8));
  const Outcome result = outcome([&] {
    if (last_rank())
      s.loss.forward(s.tensors.inputs(), s.tensors.outputs());
    else
      call(s, s.tensors.inputs(), s.tensors.outputs());
  });
  expect_disagreement(s, result, ErrorCode::mismatch, true, "operation");
}

TEST(Disagreement, InTheObjectIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 9));
  Problem scaled = three_chunks();
  scaled.logit_scale = 5;
  const Loss& other = *new Loss(scaled, s.communicator);  // never freed, as the stage
  const Outcome result = outcome([&] {
    const Loss& mine = last_rank() ? other : s.loss;
    mine.forward_backward(s.tensors.inputs(), s.tensors.outputs(), {}, s.tensors.gradients());
  });
  expect_disagreement(s, result, ErrorCode::mismatch, true, "object");
}

TEST(Disagreement, InTheSavedOfABackwardIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 10));
  const Tensors& t = s.tensors;
  Saved& first = *new Saved(s.loss.make_saved());
  Saved& second = *new Saved(s.loss.make_saved());
  s.loss.forward(t.inputs(), t.outputs(), &first);
  s.loss.forward(t.inputs(), t.outputs(), &second);
  const Outcome result = outcome([&] {
    s.loss.backward(t.inputs(), last_rank() ? second : first, t.upstreams(), t.gradients());
  });
  s.tensors.loss.poison();
  expect_disagreement(s, result, ErrorCode::mismatch, true, "saved forward");
}

TEST(Disagreement, AForwardThatFailsLeavesNothingToBackwardFrom) {
  SHARDLOSS_NEEDS_PEERS();
  Problem problem = three_chunks();
  problem.keep_logits = 12;
  Stage& s = stage(fill(problem, ranks(), 11));
  const Tensors& t = s.tensors;
  Saved& saved = *new Saved(s.loss.make_saved());
  s.loss.forward(t.inputs(), t.outputs(), &saved);
  Tensors other(s.sample, rank(), ranks(), {});
  std::vector<std::int64_t> targets = s.sample.data.targets;
  targets[7] = targets[7] == 4 ? 5 : 4;
  if (last_rank()) other.targets.write(targets);
  s.tensors.reset();
  const Outcome failed =
      outcome([&] { s.loss.forward(other.inputs(), s.tensors.outputs(), &saved); });
  expect_disagreement(s, failed, ErrorCode::mismatch, false, "targets");
  const Outcome result =
      outcome([&] { s.loss.backward(t.inputs(), saved, t.upstreams(), t.gradients()); });
  EXPECT_EQ(name(result.code()), name(ErrorCode::invalid_argument)) << result.text();
  EXPECT_NE(result.text().find("no forward"), std::string::npos) << result.text();
  EXPECT_EQ(s.works(), "");
}

TEST(Disagreement, OfABackwardWithAForwardIsFatalOnAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 9));
  Saved saved = s.loss.make_saved();
  s.loss.forward(s.tensors.inputs(), s.tensors.outputs(), &saved);
  s.tensors.reset();
  const Outcome result = outcome([&] {
    if (last_rank())
      s.loss.backward(s.tensors.inputs(), saved, {}, s.tensors.gradients());
    else
      s.loss.forward(s.tensors.inputs(), s.tensors.outputs());
  });
  expect_disagreement(s, result, ErrorCode::mismatch, true, "operation");
}

TEST(Disagreement, InAnInvalidTargetIsNoDisagreementButAnErrorOfAll) {
  SHARDLOSS_NEEDS_PEERS();
  Stage& s = stage(fill(three_chunks(), ranks(), 11));
  Tensors other(s.sample, rank(), ranks(), {});
  std::vector<std::int64_t> targets = s.sample.data.targets;
  targets[5] = 1000000;
  other.targets.write(targets);
  const Outcome result = outcome([&] { call(s, other.inputs(), s.tensors.outputs()); });
  EXPECT_EQ(name(result.code()), name(ErrorCode::invalid_target)) << result.text();
  EXPECT_FALSE(s.communicator.failed());
  EXPECT_EQ(s.works(), "");
}

}  // namespace
}  // namespace shardloss::test
