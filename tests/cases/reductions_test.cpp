// Cases of section B: reductions, masks, weights, upstream gradients, transforms of the logits.
#include <algorithm>
#include <cmath>

#include "rank_test.hpp"

namespace shardloss::test {
namespace {

using Cases = RankTest;

const double ln2 = std::log(2.0);

void expect_zeros(const std::vector<double>& values, const char* what) {
  ASSERT_FALSE(values.empty()) << what;
  for (const double value : values) ASSERT_EQ(value, 0) << what;
}

TEST_F(Cases, T11_NothingCountsGivesLossZeroAndZeroGradients) {
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
      Problem problem = plain_problem(4, 3, 11);
      problem.reduction = reduction;
      problem.layout = layout;
      problem.bias = true;
      Sample sample = fill(problem, ranks(), 1);
      sample.data.targets.assign(4, -100);
      for (Way way : {Way::fused, Way::two_step}) {
        const Answer answer = answer_of(sample, communicator(), way);
        expect_zeros(answer.loss, "loss");
        expect_zeros(answer.row_loss, "row_loss");
        expect_zeros(answer.grad_hidden, "dX");
        expect_zeros(answer.grad_weight, "dW");
        expect_zeros(answer.grad_bias, "db");
        EXPECT_EQ(answer.counted_rows[0], 0);
      }
    }
  }
}

TEST_F(Cases, T11_WeightsThatCancelGiveLossZeroAndZeroGradients) {
  Sample sample = with_logits({{0, 1}, {2, 0}}, {0, 1});
  sample.data.token_weights = {1, -1};
  const Answer answer = answer_of(sample, communicator());
  expect_zeros(answer.loss, "loss");
  expect_zeros(answer.grad_weight, "dW");
  EXPECT_EQ(answer.counted_rows[0], 2);
}

TEST_F(Cases, T11_ANormalizerOfZeroGivesLossZeroAndZeroGradients) {
  Problem options;
  options.normalizer = true;
  for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
    options.reduction = reduction;
    Sample sample = with_logits({{0, 1}, {2, 0}}, {0, 1}, options);
    sample.data.normalizer = 0;
    const Answer answer = answer_of(sample, communicator());
    expect_zeros(answer.loss, "loss");
    expect_zeros(answer.grad_hidden, "dX");
  }
}

TEST_F(Cases, T11_IgnoredRowsHaveNoGradientWhateverTheUpstreams) {
  Problem options;
  options.reduction = Reduction::none;
  Sample sample = with_logits({{0, 1}, {2, 0}}, {-100, 1}, options);
  const double infinity = std::numeric_limits<double>::infinity();
  sample.data.upstream_loss = {infinity, 1};
  sample.data.upstream_lse = {infinity, 0};
  const Answer answer = answer_of(sample, communicator());
  EXPECT_EQ(answer.grad_hidden[0], 0);
  EXPECT_EQ(answer.grad_hidden[1], 0);
  for (std::size_t v = 0; v < 2; ++v) {
    EXPECT_EQ(answer.grad_weight[2 * v], 0);
    EXPECT_TRUE(std::isfinite(answer.grad_weight[2 * v + 1]));
  }
}

TEST_F(Cases, T11_IgnoredRowsHaveNoGradientWhereThatOfOthersOverflows) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    Problem problem = plain_problem(6, 5, 20, dtype);
    problem.reduction = Reduction::none;
    problem.logit_scale = 1e3;
    problem.bias = true;
    Sample sample = fill(problem, ranks(), 2);
    sample.data.targets = {-100, 3, -100, 7, 19, -100};
    sample.data.upstream_loss.assign(6, 1e38);
    for (const Way way : {Way::fused, Way::two_step}) {
      const Answer answer = answer_of(sample, communicator(), way);
      for (const std::size_t row : {0, 2, 5})
        for (std::size_t k = 0; k < 5; ++k)
          EXPECT_EQ(answer.grad_hidden[row * 5 + k], 0) << name(dtype) << " row " << row;
    }
  }
}

TEST_F(Cases, T12_EachRowHasItsOwnUpstream) {
  Problem options;
  options.reduction = Reduction::none;
  Sample sample = with_logits({{0, 0}}, {0}, options);
  sample.problem.max_rows = sample.data.rows = 2;
  sample.data.hidden = {1, 1};
  sample.data.targets = {0, 1};
  sample.data.upstream_loss = {1, 0};
  expect_near(answer_of(sample, communicator()).grad_weight, {-0.5, 0.5}, 1e-7, "dW");
  sample.data.upstream_loss = {0, 1};
  expect_near(answer_of(sample, communicator()).grad_weight, {0.5, -0.5}, 1e-7, "dW");
}

TEST_F(Cases, T14_IgnoredRowsAreNotCountedInTheMean) {
  for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
    Problem options;
    options.reduction = reduction;
    const Sample sample =
        with_logits({{0, 0}, {0, 0}, {0, 0}, {0, 0}}, {0, -100, 1, -100}, options);
    const Answer answer = answer_of(sample, communicator());
    const bool mean = reduction == Reduction::mean;
    expect_near(answer.loss, {mean ? ln2 : 2 * ln2}, 1e-6, "loss");
    const double g = mean ? 0.25 : 0.5;
    expect_near(answer.grad_weight, {-g, 0, g, 0, g, 0, -g, 0}, 1e-7, "dz");
    EXPECT_EQ(answer.counted_rows[0], 2);
  }
}

/// A row of two logits whose loss for target 0 is `loss`.
std::vector<double> row_of_loss(double loss) {
  return {0, static_cast<double>(static_cast<float>(std::log(std::expm1(loss))))};
}

TEST_F(Cases, T15_MicroBatchesAddUpToTheWholeBatch) {
  Problem options;
  options.max_rows = 3;
  options.reduction = Reduction::sum;
  options.normalizer = true;  // the tokens of all micro-batches
  const std::vector<std::vector<double>> rows = {row_of_loss(4), row_of_loss(2), row_of_loss(2),
                                                 row_of_loss(2)};
  // Hidden size 4 in both, so that the weight is one: columns are the rows of the whole batch.
  Sample whole_batch = with_logits(rows, {0, 0, 0, 0}, options);
  whole_batch.data.normalizer = 4;
  const Answer want = answer_of(whole_batch, communicator());
  expect_near(want.loss, {2.5}, 1e-6, "loss");

  Sample first = whole_batch;
  first.data.rows = 1;
  first.data.hidden.resize(4);
  first.data.targets.resize(1);
  Sample rest = whole_batch;
  rest.data.rows = 3;
  rest.data.hidden.erase(rest.data.hidden.begin(), rest.data.hidden.begin() + 4);
  rest.data.targets.resize(3);

  const Loss loss(whole_batch.problem, communicator(), device());
  Tensors a = place(first);
  Tensors b = place(rest);
  Gradients grad = a.gradients();
  loss.forward_backward(a.inputs(), a.outputs(), {}, grad, {test_stream()});
  grad.hidden = b.gradients().hidden;
  grad.accumulate_weight = true;
  loss.forward_backward(b.inputs(), b.outputs(), {}, grad, {test_stream()});
  loss.wait(test_stream());
  EXPECT_NEAR(a.answer().loss[0] + b.answer().loss[0], 2.5, 1e-6);
  expect_near(gather(a.answer().grad_weight), want.grad_weight, 1e-6, "dW");
}

/// Rows [first, first + rows) of a batch, by themselves; row_sharded: none on one rank of many.
Sample micro_batch(const Sample& batch, std::int64_t first, std::int64_t rows, int hole) {
  Sample micro = rows_of(batch, first, rows);
  if (batch.problem.layout == Layout::replicated) return micro;
  micro.split.assign(static_cast<std::size_t>(ranks()), 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto owner = static_cast<int>(i % 3 == 0 ? i : 0) % ranks();
    ++micro.split[static_cast<std::size_t>(owner == hole ? (owner + 1) % ranks() : owner)];
  }
  return micro;
}

TEST_F(Cases, T15_ScaledMeansOfMicroBatchesAddUpToTheScaledMeanOfTheBatch) {
  // Micro-batches of many sizes in which as many rows count: the mean of their means is the mean.
  constexpr std::int64_t sizes[] = {5, 3, 6};
  constexpr double loss_scale = 1024, micro_batches = 3;
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      Problem problem = plain_problem(14, 7, 37, dtype);
      problem.layout = layout;
      problem.bias = true;
      problem.grad_weight = GradDType::float32;
      problem.chunking = {Chunking::Rule::rows, 4};
      Sample batch = fill(problem, ranks(), 15);
      for (std::size_t i = 0; i < 14; ++i)
        batch.data.targets[i] = static_cast<std::int64_t>(5 * i + 1) % 37;
      for (const std::size_t i : {1, 4, 8, 9, 13}) batch.data.targets[i] = -100;
      batch.data.upstream_loss = {loss_scale};
      const Loss loss = make(batch);
      const Execution on{test_stream()};
      for (const Way way : {Way::fused, Way::two_step}) {
        SCOPED_TRACE((way == Way::fused ? "fused " : "two_step ") + describe_options(batch));
        expect_reference(batch, way);

        const Tensors main = place(batch);  // of which the weight's and the bias gradients are used
        std::vector<Sample> samples;
        std::vector<Tensors> parts;
        std::vector<Saved> saved;
        std::int64_t first = 0;
        for (const std::int64_t rows : sizes) {
          const auto hole = static_cast<int>(samples.size()) % ranks();
          samples.push_back(micro_batch(batch, first, rows, hole));
          samples.back().data.upstream_loss.clear();
          parts.push_back(place(samples.back()));
          first += rows;
          if (way == Way::fused) continue;
          saved.push_back(loss.make_saved());
          loss.forward(parts.back().inputs(), parts.back().outputs(), &saved.back(), on);
        }
        // All forwards came first; their upstreams are known only now.
        Answer sum;
        sum.loss = {0};
        sum.counted_rows = {0};
        for (std::size_t m = 0; m < parts.size(); ++m) {
          Tensors& part = parts[m];
          part.set_upstream(loss_scale / micro_batches);
          Gradients grad = main.gradients();
          grad.hidden = part.gradients().hidden;
          grad.accumulate_weight = grad.accumulate_bias = m > 0;
          if (way == Way::fused)
            loss.forward_backward(part.inputs(), part.outputs(), part.upstreams(), grad, on);
          else
            loss.backward(part.inputs(), saved[m], part.upstreams(), grad, on);
          loss.wait(test_stream());
          const Answer answer = whole(samples[m], part.answer(), ranks());
          sum.loss[0] += answer.loss[0] / micro_batches;
          sum.counted_rows[0] += answer.counted_rows[0];
          sum.lse.insert(sum.lse.end(), answer.lse.begin(), answer.lse.end());
          sum.grad_hidden.insert(sum.grad_hidden.end(), answer.grad_hidden.begin(),
                                 answer.grad_hidden.end());
        }
        sum.grad_weight = gather(main.grad_weight.read());
        sum.grad_bias = gather(main.grad_bias.read());
        EXPECT_EQ(differences(batch, sum, loss.plan()), "");
      }
    }
  }
}

TEST_F(Cases, T15_DenominatorsOfManyCallsAddUpOnTheDevice) {
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = plain_problem(9, 3, 11);
    problem.layout = layout;
    problem.class_weights = true;
    problem.row_index = true;
    Sample sample = fill(problem, ranks(), 8);
    sample.data.class_weights = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    sample.data.token_weights = {1, 2, 1, 0, -1, 0.5, 1, 1, 4};
    sample.data.targets = {0, 1, -100, 3, 4, 5, 11, 7, 8};  // one ignored, one invalid
    const double all = 1 * 1 + 2 * 2 - 1 * 5 + 0.5 * 6 + 1 * 8 + 4 * 9;
    const Loss loss = make(sample);
    DeviceArray total = DeviceArray::one(DType::float32, device());
    total.write(std::vector<double>{3});
    const Execution on{.stream = test_stream()};
    loss.add_denominator(place(sample).inputs(), total.tensor(), on);
    sample.data.row_index = {{1, 2, 8}};
    loss.add_denominator(place(sample).inputs(), total.tensor(), on);
    synchronize();
    double want = 3 + all + 2 * 2 + 4 * 9;
    if (layout == Layout::row_sharded) {
      sum_over(communicator(), total.tensor(), test_stream());
      synchronize();
      want += 3 * (ranks() - 1);  // each rank began with 3
    }
    expect_near(total.read(), {want}, 1e-5, "total");
  }
}

TEST_F(Cases, T15_SumsOverAGroupAreTheSameOnAllRanks) {
  for (DType dtype : {DType::float32, DType::float64, DType::int64}) {
    DeviceArray values(dtype, 5, 1, device());
    values.write(std::vector<double>{1.0 + rank(), 2, 3, 4, 5});
    sum_over(communicator(), values.tensor(), test_stream());
    synchronize();
    const int p = ranks();
    expect_near(values.read(), {p * (p + 1) / 2.0, 2.0 * p, 3.0 * p, 4.0 * p, 5.0 * p}, 1e-6,
                "values");
    EXPECT_TRUE(same_everywhere(values.bytes()));
  }
}

TEST_F(Cases, T15_SumsOfUnlikeValuesAreRefused) {
  const DeviceArray values(DType::float32, 4, 1, device());
  const Tensor null(nullptr, DType::float32, 4, 1, device());
  const Tensor negative(values.data(), DType::float32, -3, 1, device());
  for (const Tensor& bad : {null, negative, Tensor{}})
    expect_error(ErrorCode::invalid_argument, {"sum_over"},
                 [&] { sum_over(communicator(), bad, test_stream()); });
  if (on_gpu() || ranks() == 1) return;  // a GPU's host does not wait for other ranks
  const Tensor fewer(values.data(), DType::float32, 2, 1);
  const Tensor wider(values.data(), DType::float64, 2, 1);
  for (const Tensor& other : {fewer, wider})
    expect_error(ErrorCode::mismatch, {"sum_over", "4 of float32"}, [&] {
      sum_over(communicator(), rank() == ranks() - 1 ? other : values.tensor());
    });
  EXPECT_FALSE(communicator().failed());
}

TEST_F(Cases, T17_UpstreamScalesTheGradients) {
  const Sample sample = with_logits({{0, 1, 2, 3}}, {3});
  const std::vector<double> dz = {.0320586, .0871443, .2368828, -.3560857};
  for (double upstream : {0.5, 2.0, -1.0}) {
    Sample scaled = sample;
    scaled.data.upstream_loss = {upstream};
    const Answer answer = answer_of(scaled, communicator());
    std::vector<double> want = dz;
    for (double& value : want) value *= upstream;
    expect_near(answer.grad_weight, want, 2e-6, "dz");
    expect_near(answer.loss, {0.4401897}, 1e-6, "loss");
  }
  Sample zero = sample;
  zero.data.upstream_loss = {0};
  expect_zeros(answer_of(zero, communicator()).grad_weight, "dW of 0 * loss");
  expect_zeros(answer_of(zero, communicator()).grad_hidden, "dX of 0 * loss");
}

TEST_F(Cases, T17_AScaleOf65536KeepsFp16GradientsRight) {
  Problem problem = plain_problem(64, 16, 100, DType::float16);
  Sample sample = fill(problem, ranks(), 3);
  sample.data.upstream_loss = {65536};
  expect_reference(sample);
}

TEST_F(Cases, T17_ALargeMeanDoesNotMakeFp16GradientsVanish) {
  Problem problem = plain_problem(64, 16, 300, DType::float16);
  problem.normalizer = true;
  problem.grad_hidden = problem.grad_weight = GradDType::float32;
  problem.chunking = {Chunking::Rule::rows, 16};
  Sample sample = fill(problem, ranks(), 4);
  sample.data.normalizer = 1e6;
  expect_reference(sample);
}

TEST_F(Cases, T19_EveryOutputIsWrittenForIgnoredRows) {
  Problem problem = plain_problem(64, 8, 300);
  problem.entropy = true;
  Sample sample = fill(problem, ranks(), 5);
  for (std::size_t i = 0; i < 64; i += 4) sample.data.targets[i] = -100;
  expect_reference(sample);  // outputs begin as NaN
}

TEST_F(Cases, T20_ZLossEntersLossAndGradient) {
  Problem options;
  options.z_loss = 0.1;
  const Answer answer = answer_of(with_logits({{0, 1, 2, 3}}, {3}, options), communicator());
  expect_near(answer.loss, {1.6236802}, 1e-6, "loss");
  expect_near(answer.cross_entropy, {0.4401897}, 1e-6, "cross_entropy");
  expect_near(answer.z_loss, {1.1834905}, 1e-6, "z_loss");
  expect_near(answer.grad_weight, {.0541161, .1471029, .3998672, .0869517}, 1e-6, "dz");
  double sum = 0;
  for (const double value : answer.grad_weight) sum += value;
  EXPECT_NEAR(sum, 0.6880379, 1e-6);
}

TEST_F(Cases, Case24_TokenWeightsWeighLossMeanAndGradient) {
  Sample sample = with_logits({{0, 0}, {0, 0}}, {0, 1});
  sample.data.token_weights = {3, 1};
  const Answer answer = answer_of(sample, communicator());
  expect_near(answer.loss, {ln2}, 1e-6, "loss");
  expect_near(answer.row_loss, {3 * ln2, ln2}, 1e-6, "row_loss");
  expect_near(answer.grad_weight, {-.375, .125, .375, -.125}, 1e-7, "dz");
}

TEST_F(Cases, Case24_WeightsThatTakeRowLossesPastFloatLeaveTheMean) {
  Problem problem = plain_problem(9, 6, 50);
  problem.z_loss = 0.01;
  problem.chunking = {Chunking::Rule::rows, 4};
  Sample sample = fill(problem, ranks(), 3);
  sample.data.token_weights.assign(9, 1);
  const Answer want = answer_of(sample, communicator());
  ASSERT_GT(want.cross_entropy[0], 2);  // so that 2^127 of it is past float32
  sample.data.token_weights.assign(9, 0x1p127);
  const Answer answer = answer_of(sample, communicator());
  expect_near(answer.loss, want.loss, 1e-6 * want.loss[0], "loss");
  expect_near(answer.cross_entropy, want.cross_entropy, 1e-6 * want.loss[0], "cross_entropy");
  expect_near(answer.z_loss, want.z_loss, 1e-6 * want.loss[0], "z_loss");
  expect_near(answer.grad_weight, want.grad_weight, 1e-6, "dW");
}

TEST_F(Cases, Case24_AWeightOfZeroKeepsOutAnInfiniteLoss) {
  Problem problem = plain_problem(4, 3, 8);
  problem.bias = true;
  problem.z_loss = 0.1;
  Sample sample = fill(problem, ranks(), 4);
  sample.data.targets = {1, 2, 3, 4};
  sample.data.bias.assign(8, 0);
  sample.data.bias[4] = -std::numeric_limits<double>::infinity();
  for (const double others : {1.0, 0.0}) {
    sample.data.token_weights = {others, others, others, 0};
    expect_reference(sample);
    EXPECT_TRUE(std::isfinite(answer_of(sample, communicator()).loss[0])) << others;
  }
}

TEST_F(Cases, Case24_AnInfiniteWeightIsNotAWeightOfNothing) {
  Sample sample = with_logits({{0, 1}, {2, 0}}, {0, 1});
  sample.data.token_weights = {1, std::numeric_limits<double>::infinity()};
  EXPECT_TRUE(std::isnan(answer_of(sample, communicator()).loss[0]));
}

TEST_F(Cases, Case24_WeightsOfClassesThatNoRowHasStayOut) {
  Problem problem = plain_problem(4, 3, 8);
  problem.class_weights = true;
  Sample sample = fill(problem, ranks(), 5);
  sample.data.targets = {1, 2, 3, 7};
  sample.data.class_weights.assign(8, 0.5);
  const Answer want = answer_of(sample, communicator());
  for (const double weight : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    sample.data.class_weights[5] = weight;
    const Answer answer = answer_of(sample, communicator());
    EXPECT_EQ(answer.loss, want.loss) << weight;
    expect_near(answer.grad_weight, want.grad_weight, 1e-6, "dW");
    expect_near(answer.grad_hidden, want.grad_hidden, 1e-6, "dX");
  }
}

// 1 - (z / cap)^2 would cancel: at |u| = 9 cap it has no digit left in float32.
TEST_F(Cases, T21_GradientsOfSaturatedLogitsKeepTheirDigits) {
  for (const double u : {1.0, 3.0, 5.0, 7.0, 9.0, 11.0}) {
    for (const double sign : {1.0, -1.0}) {
      Problem options;
      options.softcap = 2;
      options.logit_scale = 2;
      const Sample sample =
          with_logits({{sign * u, sign * (u + 0.5), sign * (u - 0.25)}}, {1}, options);
      const std::vector<double> want = reference(sample.data).grad_weight;
      const std::vector<double> got = answer_of(sample, communicator()).grad_weight;
      for (std::size_t v = 0; v < want.size(); ++v)
        EXPECT_NEAR(got[v], want[v], 1e-5 * std::abs(want[v])) << sign * u << " column " << v;
    }
  }
}

TEST_F(Cases, T21_CapComesAfterScaleAndBeforeEverythingElse) {
  Problem options;
  options.softcap = 2;
  const Answer capped = answer_of(with_logits({{0, 2}}, {1}, options), communicator());
  expect_near(capped.loss, {0.1972230}, 1e-6, "loss");
  expect_near(capped.grad_weight, {.1789925, -.0751723}, 1e-6, "dz");
  // A scale of 2 over half the logits is the same capped logits, and twice the gradient.
  options.logit_scale = 2;
  const Answer scaled = answer_of(with_logits({{0, 1}}, {1}, options), communicator());
  expect_near(scaled.loss, {0.1972230}, 1e-6, "loss");
  expect_near(scaled.grad_weight, {2 * .1789925, -2 * .0751723}, 2e-6, "dz");
}

TEST_F(Cases, T21_SmoothingAndZLossSeeCappedLogits) {
  Problem problem = plain_problem(11, 7, 37);
  problem.softcap = 3;
  problem.logit_scale = 0.7;
  problem.label_smoothing = 0.2;
  problem.z_loss = 0.1;
  expect_reference(fill(problem, ranks(), 6));
}

TEST_F(Cases, T34_AFrozenShardOnOneRankDoesNotStopTheOthers) {
  Problem problem = plain_problem(17, 7, 37);
  problem.chunking = {Chunking::Rule::rows, 5};
  const Sample sample = fill(problem, ranks(), 7);
  const Loss loss = make(sample);
  for (int frozen = 0; frozen < ranks(); ++frozen) {
    Style style;
    style.grad_weight = rank() != frozen;
    const Tensors tensors = place(sample, style);
    run(loss, tensors, Way::fused);
    Answer answer = tensors.answer();
    const ReferenceResult exact = reference(sample.data);
    const Shard shard = loss.plan().shard;
    if (rank() == frozen)
      for (std::int64_t i = shard.first * 7; i < (shard.first + shard.width) * 7; ++i)
        answer.grad_weight.push_back(exact.grad_weight[static_cast<std::size_t>(i)]);
    EXPECT_EQ(differences(sample, whole(sample, answer, ranks()), loss.plan()), "");
  }
}

}  // namespace
}  // namespace shardloss::test
