// Cases of section A: the vocabulary is whole although each rank holds a part of it. Values are
// closed forms; z = [0, 1, 2, 3] with target 3 unless said otherwise.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "forwarding_transport.hpp"
#include "rank_test.hpp"
#include "records.hpp"

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

/// Puts the fault of T1 and T2 into a rank's computation: when the statistics of a chunk have come
/// in, what its own shard sums for the smoothing stands for the whole vocabulary.
class LocalMeanTransport final : public launch::ForwardingTransport {
 public:
  LocalMeanTransport(Communicator inner, const Plan& plan, std::int64_t vocab)
      : ForwardingTransport(std::move(inner)),
        rows_(plan.chunk_rows),
        times_(static_cast<float>(vocab) / static_cast<float>(plan.shard.vocab)) {}

  int rewritten() const { return rewritten_; }

  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override {
    const Ticket ticket = to().all_gather(data, bytes, compute);
    const auto statistics = [&](std::int64_t part) {
      return part == static_cast<std::int64_t>(segment());
    };
    if (std::all_of(bytes.begin(), bytes.end(), statistics))
      under_way_[ticket.id] = static_cast<std::byte*>(data);
    return ticket;
  }

  void wait(Ticket ticket, Stream compute) override {
    to().wait(ticket, compute);
    const auto found = under_way_.find(ticket.id);
    if (found == under_way_.end()) return;
    for (int r = 0; r < size(); ++r) {
      auto* const rows = reinterpret_cast<detail::RowStatistics<float>*>(
          found->second + static_cast<std::size_t>(r) * segment() + sizeof(detail::CallHeader));
      for (std::int64_t i = 0; i < rows_; ++i)
        rows[i].weighted_sum = r == rank() ? times_ * rows[i].weighted_sum : 0;
    }
    under_way_.erase(found);
    ++rewritten_;
  }

 private:
  std::size_t segment() const {
    return sizeof(detail::CallHeader) +
           static_cast<std::size_t>(rows_) * sizeof(detail::RowStatistics<float>);
  }

  std::int64_t rows_;
  float times_;
  std::map<std::uint64_t, std::byte*> under_way_;
  int rewritten_ = 0;
};

/// The outputs of which differences() tells.
std::set<std::string> outputs_in(const std::string& differences) {
  std::set<std::string> names;
  std::istringstream lines(differences);
  for (std::string line; std::getline(lines, line);) names.insert(line.substr(0, line.find('[')));
  return names;
}

// The mean is in the loss and in nothing else: the gradient's smoothing term is a / V, whatever the
// logits are.
TEST_F(Cases, T2_ALocalMeanWouldNotPass) {
  if (on_gpu()) GTEST_SKIP() << "the statistics are rewritten in host memory";
  if (ranks() == 1) GTEST_SKIP() << "one shard's mean is the vocabulary's";
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const SmoothingForm form : {SmoothingForm::pytorch, SmoothingForm::megatron}) {
      Problem problem = plain_problem(11, 7, 60);
      problem.layout = layout;
      problem.chunking = {Chunking::Rule::rows, 4};
      problem.label_smoothing = 0.1;
      problem.label_smoothing_form = form;
      const Sample sample = fill(problem, ranks(), 5);
      const Plan plan = make(sample).plan();
      for (const Way way : {Way::fused, Way::two_step}) {
        SCOPED_TRACE(describe_options(sample));
        const auto faulty =
            std::make_shared<LocalMeanTransport>(communicator(), plan, problem.vocab);
        const Answer answer = answer_of(sample, Communicator(faulty), way);
        EXPECT_GE(faulty->rewritten(), plan.chunks);
        EXPECT_EQ(outputs_in(differences(sample, answer, plan)),
                  (std::set<std::string>{"loss", "row_loss", "cross_entropy"}));
        expect_reference(sample, way);
      }
    }
  }
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
