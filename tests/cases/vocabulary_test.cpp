// Cases of section A: the vocabulary is whole although each rank holds a part of it. Values are
// closed forms; z = [0, 1, 2, 3] with target 3 unless said otherwise.
#include <cmath>

#include "rank_test.hpp"

namespace shardloss::test {
namespace {

using Cases = RankTest;

Sample four_logits(const Problem& options = {}) {
  return with_logits({{0, 1, 2, 3}}, {3}, options);
}

TEST_F(Cases, T1_MegatronSmoothingUsesTheWholeVocabularyOnEveryRank) {
  Problem options;
  options.label_smoothing = 0.1;
  options.label_smoothing_form = SmoothingForm::megatron;
  const Answer answer = answer_of(four_logits(options), communicator());
  expect_near(answer.loss, {0.6401897}, 1e-6, "loss");
  expect_near(answer.grad_weight, {-0.0012747, 0.0538110, 0.2035495, -0.2560857}, 1e-6, "dz");
}

TEST_F(Cases, T1_SmoothingStaysFiniteWhereProbabilitiesUnderflow) {
  Problem options;
  options.label_smoothing = 0.1;
  for (SmoothingForm form : {SmoothingForm::pytorch, SmoothingForm::megatron}) {
    options.label_smoothing_form = form;
    const Sample sample = with_logits({{0, 1000, 2000, 3000}}, {3}, options);
    const Answer answer = answer_of(sample, communicator());
    const double a = form == SmoothingForm::pytorch ? 0.1 : 0.1 * 4 / 3;
    expect_near(answer.loss, {a * 1500}, 1e-3, "loss");
    expect_reference(sample);
  }
}

TEST_F(Cases, T2_PyTorchSmoothingIsTheGlobalMean) {
  Problem options;
  options.label_smoothing = 0.1;
  const Answer answer = answer_of(four_logits(options), communicator());
  expect_near(answer.loss, {0.5901897}, 1e-6, "loss");
  expect_reference(four_logits(options));
}

// The fault of T1 and T2 put into the exact answer must not pass: each rank smooths over its own
// shard, with its own mean and its own size.
TEST_F(Cases, T2_ALocalMeanWouldNotPass) {
  Problem problem = plain_problem(11, 7, 20);
  problem.label_smoothing = 0.1;
  problem.shard_widths.assign(static_cast<std::size_t>(ranks()), 0);
  problem.shard_widths.front() = 20;
  const Sample sample = fill(problem, ranks(), 5);
  const Loss loss = make(sample);
  const ReferenceResult exact = reference(sample.data);

  Answer faulty;
  faulty.row_loss = exact.row_loss;
  for (std::int64_t i = 0; i < 11; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (sample.data.targets[at] == -100) continue;
    const std::vector<double> z = reference_logits(sample.data, i);
    double local = 0;  // of a shard of the first 10 columns
    double global = 0;
    for (std::size_t v = 0; v < 20; ++v) (v < 10 ? local : global) += z[v];
    global += local;
    faulty.row_loss[at] += 0.1 * (global / 20 - local / 10);
  }
  EXPECT_NE(differences(sample, faulty, loss.plan()), "");
  Answer right;
  right.row_loss = exact.row_loss;
  EXPECT_EQ(differences(sample, right, loss.plan()), "");
}

TEST_F(Cases, T4_HiddenGradientIsReducedOverRanks) {
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem options;
    options.layout = layout;
    Sample sample = four_logits(options);
    if (layout == Layout::row_sharded) {
      sample.split.assign(static_cast<std::size_t>(ranks()), 0);
      sample.split.back() = 1;
    }
    const Answer answer = answer_of(sample, communicator());
    expect_near(answer.grad_hidden, {-0.5073471}, 1e-6, "dX");
    expect_near(answer.loss, {0.4401897}, 1e-6, "loss");
  }
}

TEST_F(Cases, T9_EveryShardGetsItsWeightGradient) {
  const Answer answer = answer_of(four_logits(), communicator());
  expect_near(answer.grad_weight, {.0320586, .0871443, .2368828, -.3560857}, 1e-6, "dW");
}

TEST_F(Cases, Case10_ChunksOfRowsGiveReducedGradients) {
  Problem options;
  options.chunking = {Chunking::Rule::rows, 1};
  options.reduction = Reduction::sum;
  Sample sample = with_logits({{0, 1, 2, 3}}, {3}, options);
  sample.problem.max_rows = sample.data.rows = 2;
  sample.data.hidden = {1, 1};
  sample.data.targets = {3, 3};
  const Answer answer = answer_of(sample, communicator());
  expect_near(answer.grad_hidden, {-0.5073471, -0.5073471}, 1e-6, "dX");
  expect_near(answer.grad_weight, {2 * .0320586, 2 * .0871443, 2 * .2368828, -2 * .3560857}, 2e-6,
              "dW");
}

TEST_F(Cases, T6_NoPhantomColumnsEnterTheSum) {
  Problem problem = plain_problem(1, 128, 300);
  problem.entropy = true;
  Sample sample = fill(problem, ranks(), 1);
  sample.data.hidden.assign(128, 1);
  sample.data.weight.assign(300 * 128, -0.15625);
  sample.data.targets = {299};
  const Answer answer = answer_of(sample, communicator());
  expect_near(answer.target_logprob, {-5.7037825}, 1e-5, "target_logprob");
  expect_near(answer.entropy, {5.7037825}, 1e-5, "entropy");
}

TEST_F(Cases, T7_LogitsThatAreAllVeryNegativeDoNotUnderflow) {
  Sample sample = fill(plain_problem(1, 128, 1024), ranks(), 1);
  sample.data.hidden.assign(128, 1);
  sample.data.weight.assign(1024 * 128, -1.5625);
  sample.data.targets = {5};
  const Answer answer = answer_of(sample, communicator());
  expect_near(answer.loss, {6.9314718}, 3e-5, "loss");
  for (std::size_t v = 0; v < 1024; ++v)
    ASSERT_NEAR(answer.grad_weight[v * 128], 1.0 / 1024 - (v == 5 ? 1 : 0), 1e-6);
}

TEST_F(Cases, T7_AddingAConstantToAllLogitsChangesNothing) {
  Problem problem = plain_problem(7, 5, 37);
  problem.bias = true;
  problem.accumulation = Accumulation::accurate;
  Sample sample = fill(problem, ranks(), 2);
  sample.data.bias.assign(37, 0);
  const Answer plain = answer_of(sample, communicator());
  for (double c : {-1e4, 1e4}) {
    sample.data.bias.assign(37, c);
    const Answer shifted = answer_of(sample, communicator());
    EXPECT_NEAR(shifted.loss[0], plain.loss[0], 2e-3);  // eps |c|
    for (std::size_t i = 0; i < plain.grad_weight.size(); ++i)
      ASSERT_NEAR(shifted.grad_weight[i], plain.grad_weight[i], 5e-3);
  }
}

TEST_F(Cases, T10_PaddingColumnsEnterNothingAndGetZeroGradients) {
  Problem options;
  options.vocab = 5;
  std::vector<std::vector<std::int64_t>> splits = {{}};
  if (ranks() == 2) splits = {{}, {5, 3}, {6, 2}, {0, 8}, {8, 0}};
  if (ranks() == 3) splits = {{}, {2, 3, 3}, {5, 0, 3}, {1, 1, 6}};
  for (const auto& widths : splits) {
    options.shard_widths = widths;
    const Sample sample = with_logits({{0, 1, 2, 3, 4, 10, 10, 10}}, {4}, options);
    const Answer answer = answer_of(sample, communicator());
    expect_near(answer.loss, {0.4519144}, 1e-6, "loss");
    EXPECT_EQ(answer.argmax[0], 4);
    for (std::size_t v = 5; v < 8; ++v) EXPECT_EQ(answer.grad_weight[v], 0);
    EXPECT_NEAR(answer.grad_weight[4], std::exp(-0.4519144) - 1, 1e-6);
  }
}

TEST_F(Cases, T10_UnevenShardsEqualOne) {
  Problem options;
  std::vector<std::vector<std::int64_t>> splits = {{}};
  if (ranks() == 2) splits = {{3, 2}, {4, 1}, {5, 0}, {0, 5}};
  if (ranks() == 3) splits = {{2, 2, 1}, {2, 3, 0}, {1, 0, 4}};
  for (const auto& widths : splits) {
    options.shard_widths = widths;
    const Sample sample = with_logits({{0, 1, 2, 3, 4}}, {4}, options);
    expect_near(answer_of(sample, communicator()).loss, {0.4519144}, 1e-6, "loss");
    expect_reference(sample);
  }
}

TEST_F(Cases, Case11_LogProbabilitiesHaveTheFullGradient) {
  Problem options;
  options.reduction = Reduction::none;
  Sample sample = with_logits({{0, 1, 2, 3}}, {0}, options);
  sample.data.upstream_loss = {0};
  sample.data.upstream_logprob = {1};
  const Answer answer = answer_of(sample, communicator());
  expect_near(answer.grad_weight, {.9679414, -.0871443, -.2368828, -.6439143}, 1e-6, "dz");
}

TEST_F(Cases, Case11_ClassWeightsAndIgnoredRowsGoTogether) {
  Problem options;
  options.class_weights = true;
  Sample sample = with_logits({{0, 1, 2, 3}, {3, 0, 0, 1}, {0, 0, 0, 0}}, {3, -100, 0}, options);
  sample.data.class_weights = {0.5, 1, 1, 2};
  const Answer answer = answer_of(sample, communicator());
  const double want = (2 * 0.4401897 + 0.5 * std::log(4.0)) / 2.5;  // divided by the weights' sum
  expect_near(answer.loss, {want}, 1e-6, "loss");
  expect_reference(sample);
}

}  // namespace
}  // namespace shardloss::test
