// Cases of sections C and D: precision, indexing, bad targets and numbers that are not finite.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "elements.hpp"
#include "rank_test.hpp"
#include "sparse_memory.hpp"

namespace shardloss::test {
namespace {

using Cases = RankTest;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// norm of the error of dX / norm of dX.
double hidden_error(const Sample& sample, const Communicator& communicator) {
  const Answer answer = answer_of(sample, communicator);
  const ReferenceResult exact = reference(sample.data);
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < exact.grad_hidden.size(); ++i) {
    error += std::pow(answer.grad_hidden[i] - exact.grad_hidden[i], 2);
    size += std::pow(exact.grad_hidden[i], 2);
  }
  return std::sqrt(error / size);
}

TEST_F(Cases, T23_ErrorOfHiddenGradientDoesNotGrowWithTheVocabulary) {
  const auto error = [&](std::int64_t vocab) {
    Problem problem = plain_problem(3, 8, vocab, DType::bfloat16);
    problem.grad_hidden = GradDType::float32;
    problem.grad_weight = GradDType::none;
    Sample sample = fill(problem, ranks(), 1);
    sample.data.targets = {0, vocab - 1, vocab / 2};
    return hidden_error(sample, communicator());
  };
  const double small = error(3072);
  const double large = error(262144);
  EXPECT_LT(small, 1e-2);
  EXPECT_LT(large, std::max(2 * small, 4e-3));
}

TEST_F(Cases, Case29_SmallGradientsAreNotFilteredOut) {
  Problem problem = plain_problem(2048, 32, 32, DType::bfloat16);
  problem.grad_weight = GradDType::float32;
  Sample sample = fill(problem, ranks(), 2);
  for (double& w : sample.data.weight) w = rounded(w / 64, DType::bfloat16);
  expect_reference(sample, Way::fused);
}

TEST_F(Cases, T25_BiasEntersOnce) {
  Problem problem = plain_problem(1, 512, 4);
  problem.bias = true;
  Sample sample = fill(problem, ranks(), 3);
  sample.data.hidden.assign(512, 0);
  sample.data.weight.assign(4 * 512, 0);
  sample.data.bias = {1, 0, 0, 0};
  sample.data.targets = {0};
  expect_near(answer_of(sample, communicator()).loss, {0.7436684}, 1e-6, "loss");
}

TEST_F(Cases, T28_RowsFartherApartThan31BitsAreRowsLikeOthers) {
  if (on_gpu()) GTEST_SKIP() << "GPU memory is not sparse";
  // 5 rows of X and up to 7 of W, 2^30 elements apart: addresses past 2^31 elements and 2^33 bytes.
  constexpr std::int64_t stride = std::int64_t{1} << 30;
  const Sample sample = fill(plain_problem(5, 3, 7), ranks(), 4);
  const Loss loss = make(sample);
  const Tensors near = place(sample);
  const std::int64_t width = loss.plan().shard.width;
  const SparseMemory x(5 * stride * 4), w((width + 1) * stride * 4), y(5 * stride * 8);
  const SparseMemory dx(5 * stride * 4), dw((width + 1) * stride * 4), out(5 * stride * 4);
  const auto spread = [](void* to, const DeviceArray& from, std::int64_t rows, std::int64_t d) {
    for (std::int64_t i = 0; i < rows; ++i)
      std::memcpy(static_cast<float*>(to) + i * stride,
                  static_cast<const float*>(from.data()) + i * d, static_cast<std::size_t>(d) * 4);
  };
  spread(x.data(), near.hidden, 5, 3);
  spread(w.data(), near.weight, width, 3);
  for (std::int64_t i = 0; i < 5; ++i)
    static_cast<std::int64_t*>(y.data())[i * stride] =
        sample.data.targets[static_cast<std::size_t>(i)];

  Inputs in;
  in.hidden = ConstTensor(x.data(), DType::float32, {5, 3}, {stride, 1});
  in.weight = ConstTensor(w.data(), DType::float32, {width, 3}, {stride, 1});
  in.targets = ConstTensor(y.data(), DType::int64, 5, stride);
  Outputs outputs;
  outputs.row_loss = Tensor(out.data(), DType::float32, 5, stride);
  Gradients grad;
  grad.hidden = Tensor(dx.data(), DType::float32, {5, 3}, {stride, 1});
  grad.weight = Tensor(dw.data(), DType::float32, {width, 3}, {stride, 1});
  loss.forward_backward(in, outputs, {}, grad);

  Answer answer;
  for (std::int64_t i = 0; i < 5; ++i) {
    answer.row_loss.push_back(static_cast<const float*>(out.data())[i * stride]);
    for (std::int64_t k = 0; k < 3; ++k)
      answer.grad_hidden.push_back(static_cast<const float*>(dx.data())[i * stride + k]);
  }
  for (std::int64_t v = 0; v < width; ++v)
    for (std::int64_t k = 0; k < 3; ++k)
      answer.grad_weight.push_back(static_cast<const float*>(dw.data())[v * stride + k]);
  answer.grad_weight = gather(answer.grad_weight);
  EXPECT_EQ(differences(sample, answer, loss.plan()), "");
}

TEST_F(Cases, T28_ALogitsChunkPast31BitsIsRightInItsLastRow) {
  if (std::getenv("SHARDLOSS_TEST_LARGE") == nullptr)
    GTEST_SKIP() << "takes gigabytes and a minute: set SHARDLOSS_TEST_LARGE=1";
  constexpr std::int64_t rows = 16385;
  constexpr std::int64_t vocab = 131072;  // rows x vocab > 2^31
  Problem problem = plain_problem(rows, 8, vocab * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, rows};
  problem.grad_weight = GradDType::float32;
  problem.reduction = Reduction::sum;
  Sample sample = fill_rows(problem, 1, ranks(), 5);
  sample.data.targets = {problem.vocab - 1};
  const Answer alone = answer_of(sample, communicator());

  // The same row last, behind ignored ones.
  Sample many = sample;
  many.data.rows = rows;
  many.data.targets.assign(rows, -100);
  many.data.targets.back() = problem.vocab - 1;
  many.data.hidden.clear();
  for (std::int64_t i = 0; i < rows; ++i)
    many.data.hidden.insert(many.data.hidden.end(), sample.data.hidden.begin(),
                            sample.data.hidden.end());
  const Answer answer = answer_of(many, communicator());
  EXPECT_NEAR(answer.loss[0], alone.loss[0], 1e-3 * alone.loss[0]);
  EXPECT_NEAR(answer.lse.back(), alone.lse[0], 1e-4);
  for (std::size_t k = 0; k < 8; ++k) {
    const std::size_t last = answer.grad_weight.size() - 8 + k;
    EXPECT_NEAR(answer.grad_weight[last], alone.grad_weight[last],
                1e-3 * std::abs(alone.grad_weight[last]));
    EXPECT_NEAR(answer.grad_hidden[(rows - 1) * 8 + k], alone.grad_hidden[k],
                1e-2 * std::abs(alone.grad_hidden[k]) + 1e-3);
  }
}

/// A sample whose row 2 has `target`, and the rest ordinary targets.
Sample with_target(std::int64_t target, const Problem& problem) {
  Sample sample = fill(problem, ranks(), 6);
  for (std::size_t i = 0; i < sample.data.targets.size(); ++i)
    sample.data.targets[i] = static_cast<std::int64_t>(i) % problem.vocab;
  sample.data.targets[2] = target;
  return sample;
}

TEST_F(Cases, T29_InvalidTargetsAreNaNRowsAndAnErrorThatNamesThemOnEveryRank) {
  Problem problem = plain_problem(7, 5, 20);
  problem.reduction = Reduction::none;
  problem.vocab_padded = 24;
  problem.chunking = {Chunking::Rule::rows, 3};
  const std::int64_t bad[] = {-1, 20, 27, std::int64_t{1} << 31, -101, 23};
  for (std::int64_t target : bad) {
    const Sample sample = with_target(target, problem);
    const Loss loss = make(sample);
    for (Way way : {Way::fused, Way::two_step}) {
      const Tensors tensors = place(sample);
      Execution on;
      on.stream = test_stream();
      Saved saved = loss.make_saved();
      expect_error(ErrorCode::invalid_target, {"2", std::to_string(target)}, [&] {
        if (way == Way::fused)
          loss.forward_backward(tensors.inputs(), tensors.outputs(), tensors.upstreams(),
                                tensors.gradients(), on);
        else
          loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
        loss.wait(on.stream);
      });
      EXPECT_FALSE(communicator().failed());
      if (way == Way::two_step) {
        try {  // the outputs are good; the gradients follow
          loss.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), on);
          loss.wait(on.stream);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_target) << error.what();
        }
      }
      const Answer answer = whole(sample, tensors.answer(), ranks());
      EXPECT_TRUE(std::isnan(answer.row_loss[2]));
      for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(answer.grad_hidden[2 * 5 + k], 0);
      EXPECT_EQ(differences(sample, answer, loss.plan()), "") << target;
      EXPECT_EQ(tensors.overwritten(), "");
    }
  }
}

TEST_F(Cases, T29_ThePolicyTurnsTheErrorOffAndTheLossIsNaNOnEveryRank) {
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = plain_problem(7, 5, 20);
    problem.throw_invalid_target = false;
    problem.layout = layout;
    const Sample sample = with_target(20, problem);
    const Answer answer = answer_of(sample, communicator());
    EXPECT_TRUE(std::isnan(answer.loss[0]));
    expect_reference(sample);
  }
}

TEST_F(Cases, T29_TheIgnoreIndexMayBeAnyValueAndTheTargetsInt32) {
  Style style;
  style.target_dtype = DType::int32;
  for (std::int64_t ignore : {-100, 0, 7, 19, 20, 1 << 30}) {
    Problem problem = plain_problem(7, 5, 20);
    problem.ignore_index = ignore;
    expect_reference(with_target(ignore, problem), style);
  }
}

TEST_F(Cases, NaNLogitsGiveANaNLossOnEveryRank) {
  for (double value : {nan, infinity}) {
    Problem problem = plain_problem(5, 4, 20);
    problem.bias = true;
    problem.reduction = Reduction::none;
    Sample sample = fill(problem, ranks(), 7);
    for (std::int64_t& target : sample.data.targets) target = 3;
    for (std::size_t column : {std::size_t{0}, std::size_t{19}}) {
      sample.data.bias.assign(20, 0);
      sample.data.bias[column] = value;
      const Answer answer = answer_of(sample, communicator());
      for (const double loss : answer.row_loss) EXPECT_TRUE(std::isnan(loss)) << value;
    }
  }
}

TEST_F(Cases, NaNInOneRowStaysInThatRow) {
  Problem problem = plain_problem(5, 4, 20);
  problem.reduction = Reduction::none;
  Sample sample = fill(problem, ranks(), 8);
  for (std::int64_t& target : sample.data.targets) target = 3;
  const Answer clean = answer_of(sample, communicator());
  sample.data.hidden[2 * 4 + 1] = nan;
  const Answer answer = answer_of(sample, communicator());
  for (std::size_t i = 0; i < 5; ++i) {
    if (i == 2)
      EXPECT_TRUE(std::isnan(answer.row_loss[i]));
    else
      EXPECT_EQ(answer.row_loss[i], clean.row_loss[i]);
  }
}

TEST_F(Cases, MaskedTokensHaveNoProbabilityAndNoGradient) {
  Problem problem = plain_problem(5, 4, 12);
  problem.bias = true;
  problem.reduction = Reduction::none;
  problem.entropy = true;
  problem.accumulation = Accumulation::accurate;
  Sample sample = fill(problem, ranks(), 9);
  sample.data.targets = {0, 1, 0, 2, 0};
  sample.data.bias.assign(12, 0);
  for (std::size_t v = 3; v < 12; ++v) sample.data.bias[v] = -infinity;  // whole shards of them
  const Answer answer = answer_of(sample, communicator());
  for (std::size_t v = 3; v < 12; ++v) {
    EXPECT_EQ(answer.grad_bias[v], 0);
    for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(answer.grad_weight[v * 4 + k], 0);
  }
  expect_reference(sample);
  // As a target: loss +inf.
  sample.data.targets[4] = 7;
  EXPECT_EQ(answer_of(sample, communicator()).row_loss[4], infinity);
}

TEST_F(Cases, AMaskedTargetOfClassWeightZeroHasNoLoss) {
  for (const double smoothing : {0.0, 0.1}) {
    Problem problem = plain_problem(4, 3, 8);
    problem.bias = true;
    problem.class_weights = true;
    problem.label_smoothing = smoothing;
    Sample sample = fill(problem, ranks(), 13);
    sample.data.targets = {0, 1, 7, 0};
    sample.data.bias.assign(8, 0);
    sample.data.bias[0] = -infinity;
    sample.data.class_weights.assign(8, 1);
    sample.data.class_weights[0] = 0;
    expect_reference(sample);
    if (smoothing == 0) {
      EXPECT_EQ(answer_of(sample, communicator()).row_loss[3], 0);
    }
  }
}

// The chunk's power of two is then near the end of float32, and a logit scale times it past that.
TEST_F(Cases, TinyUpstreamsBesideALogitScaleKeepTheirGradients) {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    // On CUDA those of the others have no power of two, and vanish below 1e-38 (OBJECTIVE.md).
    if (on_gpu() && dtype != DType::float16) continue;
    for (const double scale : {8.0, 1000.0}) {
      Problem problem = plain_problem(6, 5, 23, dtype);
      problem.grad_hidden = problem.grad_weight = GradDType::float32;
      problem.bias = true;
      problem.reduction = Reduction::sum;
      problem.logit_scale = scale;
      for (const Accumulation accumulation : {Accumulation::balanced, Accumulation::accurate}) {
        problem.accumulation = accumulation;
        Sample sample = fill(problem, ranks(), 14);
        sample.data.upstream_loss = {0x1p-121};
        for (auto* values : {&sample.data.hidden, &sample.data.bias})
          for (double& x : *values) x = rounded(x / scale, dtype);
        expect_reference(sample);
      }
    }
  }
}

// A scale brings back what an upstream took out of float32's range.
TEST_F(Cases, AFarUpstreamAndAFarLogitScaleMakeAGradientInRange) {
  for (const double scale : {0x1p-40, 0x1p40}) {
    Problem problem = plain_problem(6, 5, 23);
    problem.grad_weight = GradDType::none;  // the hidden states of such a scale take it too far
    problem.reduction = Reduction::sum;
    problem.logit_scale = scale;
    Sample sample = fill(problem, ranks(), 15);
    sample.data.token_weights.assign(6, scale > 1 ? 0x1p-75 : 0x1p75);
    sample.data.upstream_loss = {scale > 1 ? 0x1p-75 : 0x1p75};
    for (double& x : sample.data.hidden) x = rounded(x / scale, DType::float32);
    expect_reference(sample);
  }
}

// Weights of 1 / count are infinite for classes that no row has.
TEST_F(Cases, AnInfiniteWeightOfAnAbsentClassTakesNothingFromFloat16Gradients) {
  Problem problem = plain_problem(6, 5, 900, DType::float16);
  problem.grad_hidden = problem.grad_weight = GradDType::float32;
  problem.class_weights = true;
  problem.reduction = Reduction::sum;
  Sample sample = fill(problem, ranks(), 16);
  sample.data.targets = {0, 1, 2, 3, 4, 5};
  sample.data.class_weights.assign(900, 1);
  sample.data.class_weights[600] = infinity;
  for (const double upstream : {0x1p-23, 0x1p18}) {
    sample.data.upstream_loss = {upstream};
    expect_reference(sample);
  }
}

TEST_F(Cases, ARowOfMaskedTokensIsNaNAndHasNoGradient) {
  for (const bool entropy : {false, true}) {
    Problem problem = plain_problem(3, 4, 12);
    problem.bias = true;
    problem.entropy = entropy;
    problem.reduction = Reduction::none;
    Sample sample = fill(problem, ranks(), 10);
    sample.data.targets = {0, 1, 2};
    sample.data.bias.assign(12, -infinity);
    const Answer answer = answer_of(sample, communicator());
    for (const double loss : answer.row_loss) EXPECT_TRUE(std::isnan(loss));
    EXPECT_EQ(answer.z_loss[0], 0);  // of coefficient 0
    for (const auto* values : {&answer.grad_hidden, &answer.grad_weight, &answer.grad_bias})
      for (const double value : *values) EXPECT_EQ(value, 0);
  }
}

// Masks are often the lowest number of a dtype, or some -1e10. So many here that a thread, a block
// or a shard sees nothing else, first or at all.
TEST_F(Cases, TokensMaskedByFiniteNumbersAreAsGoodAsGone) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const double mask : {-0x1p30, -0x1p33, -0x1p66, -0x1.fep127}) {
      for (const bool sums : {false, true}) {
        SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(mask));
        Problem problem = plain_problem(5, 6, 9000, dtype);
        problem.bias = true;
        problem.entropy = sums;
        problem.class_weights = sums;
        problem.label_smoothing = sums ? 0.1 : 0;
        Sample sample = fill(problem, ranks(), 11);
        sample.data.targets = {8999, 8800, -100, 8750, 8999};
        sample.data.bias.assign(9000, 0.5);
        std::fill_n(sample.data.bias.begin(), 8700, mask);
        if (sums) {
          sample.data.class_weights.assign(9000, 0.75);
          std::fill_n(sample.data.class_weights.begin(), 8700, 0);
        }
        expect_reference(sample);
      }
    }
  }
}

TEST_F(Cases, ARowOfFiniteMasksIsUniform) {
  for (const bool entropy : {false, true}) {
    Problem problem = plain_problem(3, 4, 12);
    problem.bias = true;
    problem.entropy = entropy;
    Sample sample = fill(problem, ranks(), 12);
    sample.data.targets = {0, 11, 5};
    sample.data.bias.assign(12, -0x1p100);
    const Answer answer = answer_of(sample, communicator());
    EXPECT_NEAR(answer.loss[0], std::log(12.0), 1e-6);
    for (std::size_t v = 0; v < 12; ++v)
      EXPECT_NEAR(answer.grad_bias[v], 1.0 / 12 - (v % 5 == 0 || v == 11 ? 1.0 / 3 : 0) * (v != 10),
                  1e-6);
  }
}

TEST_F(Cases, LogitsOfTenThousandStayFinite) {
  Problem problem = plain_problem(2, 2, 4);
  problem.entropy = true;
  const Sample sample = with_logits({{-1e4, 1e4, 0, 5e3}, {1e4, 1e4, -1e4, 0}}, {1, 0}, problem);
  const Answer answer = answer_of(sample, communicator());
  for (const auto* values : {&answer.loss, &answer.lse, &answer.entropy, &answer.grad_weight})
    for (const double value : *values) EXPECT_TRUE(std::isfinite(value));
  EXPECT_NEAR(answer.row_loss[1], std::log(2.0), 1e-5);
}

TEST_F(Cases, TheLowestOfEqualMaximaIsTheArgmax) {
  const Sample sample =
      with_logits({{0, 2, 2, 2, 1, 2}, {3, 0, 0, 0, 0, 3}, {1, 1, 1, 1, 1, 1}}, {1, 5, 0});
  const Answer answer = answer_of(sample, communicator());
  EXPECT_EQ(answer.argmax, (std::vector<std::int64_t>{1, 0, 0}));
  EXPECT_EQ(answer.correct, (std::vector<std::int64_t>{1, 0, 1}));
}

}  // namespace
}  // namespace shardloss::test
