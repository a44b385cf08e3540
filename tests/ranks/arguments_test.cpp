// Arguments that do not fit: the error names both sides, every rank throws, and the communicator is
// as good as before.
#include <functional>

#include "rank_test.hpp"

namespace shardloss::test {
namespace {

/// What a call is made of, to be bent.
struct Arguments {
  Inputs in;
  Outputs out;
  Upstreams up;
  Gradients grad;
};

class CallArguments : public RankTest {
 protected:
  /// Bends the call on `bad_rank` only; every rank must end in invalid_argument, the bent one with
  /// `parts` in its text and all its outputs untouched. Afterwards a good call on the same objects
  /// must still be right.
  void expect_refused(const Sample& sample, std::initializer_list<std::string_view> parts,
                      const std::function<void(Arguments&)>& bend) {
    const int bad_rank = ranks() - 1;
    const Loss loss = make(sample);
    Tensors tensors = place(sample);
    Arguments call{tensors.inputs(), tensors.outputs(), tensors.upstreams(), tensors.gradients()};
    if (rank() == bad_rank) bend(call);
    const std::vector<std::byte> before = tensors.all_bytes();
    if (on_gpu() && ranks() > 1) GTEST_SKIP() << "a GPU call does not wait for other ranks' checks";
    if (rank() == bad_rank)
      expect_error(ErrorCode::invalid_argument, parts, [&] { forward_backward(loss, call); });
    else
      expect_error(ErrorCode::invalid_argument, {"rank " + std::to_string(bad_rank)},
                   [&] { forward_backward(loss, call); });
    EXPECT_FALSE(communicator().failed());
    EXPECT_TRUE(rank() != bad_rank || tensors.all_bytes() == before);
    tensors.reset();
    run(loss, tensors, Way::fused);
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
  }

  static void forward_backward(const Loss& loss, const Arguments& call) {
    loss.forward_backward(call.in, call.out, call.up, call.grad, {test_stream()});
    loss.wait(test_stream());
  }

  static Sample sample() { return fill(plain_problem(9, 6, 20), ranks(), 1); }
};

const void* data(const ConstTensor& tensor) { return tensor.data(); }
Tensor writable(const ConstTensor& tensor) {
  return {const_cast<void*>(tensor.data()),
          tensor.dtype(),
          {tensor.size(0), tensor.size(1)},
          {tensor.stride(0), tensor.stride(1)},
          tensor.device()};
}

TEST_F(CallArguments, WrongDTypeNamesBoth) {
  expect_refused(sample(), {"hidden", "float16", "float32"}, [](Arguments& call) {
    call.in.hidden = ConstTensor(data(call.in.hidden), DType::float16, {9, 6}, {6, 1}, device());
  });
  expect_refused(sample(), {"targets", "float32", "int64"}, [](Arguments& call) {
    call.in.targets = ConstTensor(data(call.in.targets), DType::float32, 9, 1, device());
  });
  expect_refused(sample(), {"loss", "bfloat16", "float32"}, [](Arguments& call) {
    call.out.loss = Tensor(call.out.loss.data(), DType::bfloat16, device());
  });
}

TEST_F(CallArguments, WrongSizesNameBoth) {
  expect_refused(sample(), {"hidden", "7", "6"}, [](Arguments& call) {
    call.in.hidden = ConstTensor(data(call.in.hidden), DType::float32, {9, 7}, {7, 1}, device());
  });
  expect_refused(sample(), {"weight", "1000", "6"}, [](Arguments& call) {
    call.in.weight = ConstTensor(data(call.in.weight), DType::float32, {1000, 6}, {6, 1}, device());
  });
  expect_refused(sample(), {"targets", "[8]", "[9]"}, [](Arguments& call) {
    call.in.targets = ConstTensor(data(call.in.targets), DType::int64, 8, 1, device());
  });
  expect_refused(sample(), {"gradient of hidden", "[9, 5]", "[9, 6]"}, [](Arguments& call) {
    call.grad.hidden = Tensor(call.grad.hidden.data(), DType::float32, {9, 5}, {6, 1}, device());
  });
  expect_refused(sample(), {"loss", "[9]", "scalar"}, [](Arguments& call) {
    call.out.loss = Tensor(call.out.row_loss.data(), DType::float32, 9, 1, device());
  });
}

TEST_F(CallArguments, TooManyRowsNameBoth) {
  const Sample more = fill(plain_problem(10, 6, 20), ranks(), 1);
  const Tensors tensors = place(more);
  expect_refused(sample(), {"10", "9"}, [&](Arguments& call) {
    call = {tensors.inputs(), tensors.outputs(), tensors.upstreams(), tensors.gradients()};
  });
}

TEST_F(CallArguments, T30_ColumnStridesAreNamed) {
  expect_refused(sample(), {"hidden", "strides [12, 2]"}, [](Arguments& call) {
    call.in.hidden = ConstTensor(data(call.in.hidden), DType::float32, {9, 6}, {12, 2}, device());
  });
  expect_refused(sample(), {"weight", "strides [1, 20]"}, [](Arguments& call) {
    call.in.weight = ConstTensor(data(call.in.weight), DType::float32, {call.in.weight.size(0), 6},
                                 {1, 20}, device());
  });
}

TEST_F(CallArguments, SizesBelowZeroAreRefused) {
  expect_refused(sample(), {"hidden", "-1"}, [&](Arguments& call) {
    call.in.hidden = ConstTensor(data(call.in.hidden), DType::float32, {-1, 6}, {6, 1}, device());
    call.in.targets = ConstTensor(data(call.in.targets), DType::int64, -1, 1, device());
  });
}

TEST_F(CallArguments, RowStridesThatTheBlasDoesNotTakeAreRefused) {
  if (on_gpu()) GTEST_SKIP() << "cublasLt takes them";
  expect_refused(sample(), {"hidden", "2147483648"}, [&](Arguments& call) {
    call.in.hidden = ConstTensor(data(call.in.hidden), DType::float32, {9, 6},
                                 {std::int64_t{1} << 31, 1}, device());
  });
}

TEST_F(CallArguments, TheRowStrideOfOneRowIsNeverUsed) {
  const Sample one = fill(plain_problem(1, 6, 20), ranks(), 6);
  const Loss loss = make(one);
  const Tensors tensors = place(one);
  Arguments call{tensors.inputs(), tensors.outputs(), tensors.upstreams(), tensors.gradients()};
  call.in.hidden = ConstTensor(data(call.in.hidden), DType::float32, {1, 6},
                               {std::int64_t{1} << 40, 1}, device());
  forward_backward(loss, call);
  EXPECT_EQ(differences(one, whole(one, tensors.answer(), ranks()), loss.plan()), "");
}

TEST_F(CallArguments, OverlappingOutputsNameBoth) {
  expect_refused(sample(), {"lse", "row_loss", "overlap"},
                 [](Arguments& call) { call.out.lse = call.out.row_loss; });
  expect_refused(sample(), {"target_logprob", "lse", "overlap"}, [](Arguments& call) {
    call.out.target_logprob =
        Tensor(static_cast<float*>(call.out.lse.data()) + 4, DType::float32, 9, 1, device());
  });
}

TEST_F(CallArguments, AnOutputThatOverlapsAnInputNamesBoth) {
  expect_refused(sample(), {"gradient of hidden", "hidden", "overlap"},
                 [](Arguments& call) { call.grad.hidden = writable(call.in.hidden); });
}

TEST_F(CallArguments, OutputsWithStrideZeroAreRefused) {
  expect_refused(sample(), {"row_loss", "stride"}, [](Arguments& call) {
    call.out.row_loss = Tensor(call.out.row_loss.data(), DType::float32, 9, 0, device());
  });
}

TEST_F(CallArguments, WrongDeviceNamesBoth) {
  expect_refused(sample(), {"hidden", "cuda", "cpu"}, [](Arguments& call) {
    const Device other = on_gpu() ? Device{} : Device{DeviceKind::cuda, 0};
    call.in.hidden = ConstTensor(data(call.in.hidden), DType::float32, {9, 6}, {6, 1}, other);
  });
}

TEST_F(CallArguments, MissingAndUnannouncedInputsAreNamed) {
  expect_refused(sample(), {"hidden", "not given"},
                 [](Arguments& call) { call.in.hidden = ConstTensor(); });
  expect_refused(sample(), {"targets", "not given"},
                 [](Arguments& call) { call.in.targets = ConstTensor(); });
  expect_refused(sample(), {"bias"}, [](Arguments& call) {
    call.in.bias =
        ConstTensor(data(call.in.weight), DType::float32, call.in.weight.size(0), 1, device());
  });
  expect_refused(sample(), {"normalizer"}, [](Arguments& call) {
    call.in.normalizer = ConstTensor(data(call.in.hidden), DType::float32, device());
  });
  expect_refused(sample(), {"entropy"}, [](Arguments& call) {
    call.out.entropy = call.out.lse;
    call.out.lse = Tensor();
  });
  Sample bias = fill(
      [] {
        Problem problem = plain_problem(9, 6, 20);
        problem.bias = true;
        return problem;
      }(),
      ranks(), 1);
  expect_refused(bias, {"bias", "not given"},
                 [](Arguments& call) { call.in.bias = ConstTensor(); });
}

TEST_F(CallArguments, AnUpstreamOfAScalarLossIsAScalar) {
  expect_refused(sample(), {"upstream of loss", "scalar"}, [](Arguments& call) {
    call.up.loss = ConstTensor(data(call.in.hidden), DType::float32, 9, 1, device());
  });
}

TEST_F(CallArguments, SoftTargetsHaveNoTargetLogprob) {
  Problem problem = plain_problem(9, 6, 20);
  problem.soft_targets = true;
  expect_refused(fill(problem, ranks(), 2), {"target_logprob", "soft_targets"},
                 [](Arguments& call) {
                   call.out.target_logprob = call.out.row_loss;
                   call.out.row_loss = Tensor();
                 });
}

TEST_F(CallArguments, ReplicatedCallsHaveNoRowsPerRank) {
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks()), 9);
  expect_refused(sample(), {"rows_per_rank", "replicated"},
                 [&](Arguments& call) { call.in.rows_per_rank = rows; });
}

TEST_F(CallArguments, RowsPerRankMustFitTheRowsBrought) {
  Problem problem = plain_problem(9, 6, 20);
  problem.layout = Layout::row_sharded;
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks()), 1000);
  expect_refused(fill(problem, ranks(), 3), {"rows_per_rank", "1000"},
                 [&](Arguments& call) { call.in.rows_per_rank = rows; });
  expect_refused(fill(problem, ranks(), 3), {"rows_per_rank"},
                 [](Arguments& call) { call.in.rows_per_rank = {}; });
}

TEST_F(CallArguments, BackwardWantsTheSplitOfItsForward) {
  if (ranks() < 2) GTEST_SKIP() << "one rank has one split";
  Problem problem = plain_problem(9, 6, 20);
  problem.layout = Layout::row_sharded;
  Sample sample = fill(problem, ranks(), 5);
  sample.split.assign(static_cast<std::size_t>(ranks()), 0);
  Sample other = sample;
  sample.split.front() = other.split.back() = 9;
  const Loss loss = make(sample);
  const Tensors filled = place(sample), brought = place(other);
  const Execution on{test_stream()};
  Saved saved = loss.make_saved();
  loss.forward(filled.inputs(), filled.outputs(), &saved, on);
  loss.wait(test_stream());
  expect_error(ErrorCode::invalid_argument, {"saved", "rows_per_rank"}, [&] {
    loss.backward(brought.inputs(), saved, brought.upstreams(), brought.gradients(), on);
  });
  EXPECT_FALSE(communicator().failed());
}

Sample indexed_sample(Layout layout) {
  Problem problem = plain_problem(9, 6, 20);
  problem.layout = layout;
  problem.row_index = true;
  Sample sample = fill(problem, ranks(), 4);
  if (layout == Layout::row_sharded) {
    sample.split.assign(static_cast<std::size_t>(ranks()), 1);
    sample.split.back() = 10 - ranks();
  }
  sample.data.row_index = {1, 2, 4, 5, 8};
  return sample;
}

TEST_F(CallArguments, ARowIndexOutsideTheRowsIsRefusedBeforeAnythingIsTouched) {
  if (on_gpu()) GTEST_SKIP() << "a GPU call cannot read its arguments";
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    const Sample good = indexed_sample(layout);
    const std::int64_t rows =
        layout == Layout::replicated ? good.data.rows : good.own_rows(ranks() - 1);
    for (const std::int64_t outside : {rows, std::int64_t{-1}, std::int64_t{1} << 40}) {
      std::vector<std::int64_t> index;
      expect_refused(good,
                     {"row_index[", std::to_string(outside), "0 .. " + std::to_string(rows - 1)},
                     [&](Arguments& call) {
                       const auto* old = static_cast<const std::int64_t*>(data(call.in.row_index));
                       const std::int64_t size = call.in.row_index.size(0);
                       index.assign(old, old + size);
                       index.back() = outside;
                       call.in.row_index = ConstTensor(index.data(), DType::int64, size, 1);
                     });
    }
  }
}

TEST_F(CallArguments, ARowIndexThatNamesARowTwiceIsRefused) {
  if (on_gpu()) GTEST_SKIP() << "a GPU call cannot read its arguments";
  const std::vector<std::int64_t> index = {3, 0, 8, 3, 5};
  expect_refused(
      indexed_sample(Layout::replicated), {"row_index[3] is 3", "twice"},
      [&](Arguments& call) { call.in.row_index = ConstTensor(index.data(), DType::int64, 5, 1); });
}

TEST_F(CallArguments, ACountOfRowsOutsideIsRefusedToo) {
  if (on_gpu()) GTEST_SKIP() << "a GPU call cannot read its arguments";
  const Sample good = indexed_sample(Layout::replicated);
  const Loss loss = make(good);
  const Tensors tensors = place(good);
  Inputs in = tensors.inputs();
  const std::int64_t outside = 9;
  in.row_index = ConstTensor(&outside, DType::int64, 1, 1);
  float total = 0;
  expect_error(ErrorCode::invalid_argument, {"row_index[0] is 9"},
               [&] { loss.add_denominator(in, Tensor(&total, DType::float32)); });
  EXPECT_EQ(total, 0);
}

TEST_F(CallArguments, SoftTargetsCountTheirTokenWeights) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = plain_problem(9, 3, 11);
    problem.layout = layout;
    problem.soft_targets = true;
    problem.class_weights = true;
    Sample sample = fill(problem, ranks(), 8);
    sample.data.token_weights = {1, 2, 1, 0, -1, 0.5, 1, 1, 4};  // 9.5
    sample.data.class_weights.assign(11, 3);
    const Loss loss = make(sample);
    const Tensors tensors = place(sample);
    DeviceArray total = DeviceArray::one(DType::float32, device());
    total.write(std::vector<double>{0});
    loss.add_denominator(tensors.inputs(), total.tensor(), {.stream = test_stream()});
    if (layout == Layout::row_sharded) sum_over(communicator(), total.tensor(), test_stream());
    synchronize();
    EXPECT_NEAR(total.read()[0], 9.5, 1e-6);
  }
}

using Construction = RankTest;

/// Every rank must throw the same Error, and the communicator stay good.
void expect_no_loss(const Communicator& communicator, ErrorCode code,
                    std::initializer_list<std::string_view> parts,
                    const std::function<void(Problem&)>& bend) {
  Problem problem = plain_problem(9, 6, 20);
  bend(problem);
  expect_error(code, parts, [&] { Loss(problem, communicator, device()); });
  EXPECT_FALSE(communicator.failed());
  EXPECT_NO_THROW(Loss(plain_problem(9, 6, 20), communicator, device()));
}

TEST_F(Construction, ABadProblemIsRefusedOnEveryRankNamingFieldAndValue) {
  expect_no_loss(communicator(), ErrorCode::invalid_argument, {"hidden", "-1"},
                 [](Problem& p) { p.hidden = -1; });
}

TEST_F(Construction, ABadProblemOnOneRankIsRefusedOnEveryRank) {
  if (ranks() == 1) return;
  expect_no_loss(communicator(), ErrorCode::mismatch, {"softcap", "-1"}, [](Problem& p) {
    if (rank() == ranks() - 1) p.softcap = -1;
  });
}

TEST_F(Construction, T3_WidthsThatSumToMoreThanTheVocabularyAreRefused) {
  if (ranks() == 1) return;
  expect_no_loss(communicator(), ErrorCode::mismatch, {std::to_string(20 * ranks()), "20"},
                 [](Problem& p) { p.shard_widths.assign(static_cast<std::size_t>(ranks()), 20); });
}

TEST_F(Construction, T34_AnotherChunkSettingOnOneRankIsAMismatchOnAll) {
  if (ranks() == 1) return;
  expect_no_loss(communicator(), ErrorCode::mismatch,
                 {"chunking", "rank " + std::to_string(ranks() - 1)}, [](Problem& p) {
                   if (rank() == ranks() - 1) p.chunking = {Chunking::Rule::rows, 3};
                 });
}

TEST_F(Construction, AnotherDeviceThanTheCommunicatorsIsRefused) {
  if (on_gpu()) GTEST_SKIP() << "needs a build and a communicator without GPU";
  if (ranks() == 1) return;  // a group of one serves both kinds
  expect_error(ErrorCode::invalid_argument, {"mpi", "cuda"}, [&] {
    Loss(plain_problem(9, 6, 20), communicator(), {DeviceKind::cuda, 0});
  });
  EXPECT_FALSE(communicator().failed());
}

}  // namespace
}  // namespace shardloss::test
