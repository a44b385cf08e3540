// The same call gives the same bits; other ways of one call give the same numbers; a call writes
// what was asked for and leaves alone what was not.
#include <cmath>

#include "rank_test.hpp"

namespace shardloss::test {
namespace {

using Repeat = RankTest;

Problem busy_problem(DType dtype = DType::float32) {
  Problem problem = plain_problem(35, 19, 131, dtype);
  problem.bias = true;
  problem.entropy = true;
  problem.label_smoothing = 0.1;
  problem.z_loss = 0.01;
  problem.chunking = {Chunking::Rule::rows, 8};
  return problem;
}

TEST_F(Repeat, T33_EightRunsGiveTheSameBits) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
      for (Way way : {Way::fused, Way::two_step}) {
        Problem problem = busy_problem(dtype);
        problem.layout = layout;
        problem.keep_logits = 8;
        const Sample sample = fill(problem, ranks(), 3);
        const Loss loss = make(sample);
        Tensors tensors = place(sample);
        run(loss, tensors, way);
        const std::vector<std::byte> first = tensors.all_bytes();
        for (int i = 1; i < 8; ++i) {
          tensors.reset();
          run(loss, tensors, way);
          ASSERT_EQ(tensors.all_bytes(), first) << "run " << i << " " << name(dtype);
        }
      }
    }
  }
}

TEST_F(Repeat, AFreshObjectGivesTheSameBits) {
  const Sample sample = fill(busy_problem(), ranks(), 4);
  std::vector<std::byte> first;
  for (int i = 0; i < 2; ++i) {
    const Loss loss = make(sample);
    const Tensors tensors = place(sample);
    run(loss, tensors, Way::fused);
    if (i == 0)
      first = tensors.all_bytes();
    else
      EXPECT_EQ(tensors.all_bytes(), first);
  }
}

TEST_F(Repeat, ReplicatedOutputsAreBitwiseTheSameOnAllRanks) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const Sample sample = fill(busy_problem(dtype), ranks(), 5);
    const Loss loss = make(sample);
    const Tensors tensors = place(sample);
    run(loss, tensors, Way::fused);
    EXPECT_TRUE(same_everywhere(tensors.replicated_bytes())) << name(dtype);
  }
}

TEST_F(Repeat, EveryWayMatchesTheReference) {
  for (std::int64_t keep : {0, 1, 16, 35}) {
    Problem problem = busy_problem();
    problem.keep_logits = keep;
    expect_reference(fill(problem, ranks(), 6));
  }
}

TEST_F(Repeat, ChunkRowsChangeNothingBeyondTolerance) {
  for (std::int64_t rows : {1, 2, 7, 34, 35, 36, 1000}) {
    Problem problem = busy_problem();
    problem.chunking = {Chunking::Rule::rows, rows};
    expect_reference(fill(problem, ranks(), 7));
  }
}

TEST_F(Repeat, CallersWorkspaceServesAsWellAsTheLibrarys) {
  const Sample sample = fill(busy_problem(), ranks(), 8);
  const Loss loss(sample.problem, communicator(), device(), WorkspaceOwner::caller);
  Tensors tensors = place(sample);
  const auto bytes = static_cast<std::int64_t>(loss.plan().workspace_bytes);
  const DeviceArray workspace(DType::uint8, bytes, 1, device());
  loss.forward_backward(tensors.inputs(), tensors.outputs(), tensors.upstreams(),
                        tensors.gradients(),
                        {test_stream(), workspace.data(), static_cast<std::size_t>(bytes)});
  loss.wait(test_stream());
  EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
  EXPECT_TRUE(workspace.intact()) << "written past its end";
  // Too small, or none, is an error on all ranks.
  for (const std::size_t short_bytes : {std::size_t{0}, static_cast<std::size_t>(bytes) - 256})
    expect_error(ErrorCode::invalid_argument, {"workspace"}, [&] {
      loss.forward(tensors.inputs(), tensors.outputs(), nullptr,
                   {test_stream(), short_bytes == 0 ? nullptr : workspace.data(), short_bytes});
    });
}

TEST_F(Repeat, AccumulatedGradientsAreTheSumOfWhatWasThereAndTheGradient) {
  Style style;
  style.accumulate = true;
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (GradDType grad : {GradDType::same, GradDType::float32}) {
      Problem problem = busy_problem(dtype);
      problem.grad_weight = problem.grad_hidden = grad;
      problem.vocab_padded = 140;  // padding rows are left alone
      expect_reference(fill(problem, ranks(), 9), style);
    }
  }
}

TEST_F(Repeat, PaddingRowsOfWrittenGradientsAreZero) {
  Problem problem = busy_problem();
  problem.vocab_padded = 140;
  const Answer answer = answer_of(fill(problem, ranks(), 10), communicator());
  for (std::size_t i = 131 * 19; i < answer.grad_weight.size(); ++i)
    ASSERT_EQ(answer.grad_weight[i], 0);
  for (std::size_t i = 131; i < answer.grad_bias.size(); ++i) ASSERT_EQ(answer.grad_bias[i], 0);
}

TEST_F(Repeat, WhatIsNotAskedForIsNotWrittenAndChangesNothing) {
  const Sample sample = fill(busy_problem(), ranks(), 11);
  const Loss loss = make(sample);
  Tensors all = place(sample);
  run(loss, all, Way::fused);
  const Answer want = all.answer();

  Style gradients_only;
  gradients_only.outputs = false;
  Tensors some = place(sample, gradients_only);
  run(loss, some, Way::fused);
  EXPECT_EQ(some.answer().grad_weight, want.grad_weight);
  EXPECT_EQ(some.answer().grad_hidden, want.grad_hidden);

  Style weight_only;
  weight_only.grad_hidden = false;
  Tensors weight = place(sample, weight_only);
  run(loss, weight, Way::fused);
  EXPECT_EQ(weight.answer().grad_weight, want.grad_weight);
  EXPECT_EQ(weight.answer().loss, want.loss);

  Tensors forward = place(sample);
  loss.forward(forward.inputs(), forward.outputs(), nullptr, {test_stream()});
  loss.wait(test_stream());
  EXPECT_EQ(forward.answer().loss, want.loss);
  EXPECT_TRUE(
      std::isnan(forward.answer().grad_weight.empty() ? NAN : forward.answer().grad_weight[0]));
}

TEST_F(Repeat, T18_BackwardMayBeCalledAgainWithAnotherUpstream) {
  const Sample sample = fill(busy_problem(), ranks(), 12);
  const Loss loss = make(sample);
  Tensors once = place(sample);
  Tensors thrice = place(sample);
  once.set_upstream(1);
  thrice.set_upstream(3);
  Saved saved = loss.make_saved();
  loss.forward(once.inputs(), once.outputs(), &saved, {test_stream()});
  loss.backward(once.inputs(), saved, once.upstreams(), once.gradients(), {test_stream()});
  synchronize();
  const Answer first = once.answer();
  loss.backward(thrice.inputs(), saved, thrice.upstreams(), thrice.gradients(), {test_stream()});
  loss.wait(test_stream());
  const Answer second = thrice.answer();
  EXPECT_EQ(once.answer().grad_weight, first.grad_weight) << "changed by the second call";
  EXPECT_EQ(once.answer().grad_hidden, first.grad_hidden) << "changed by the second call";
  const auto expect_thrice = [](const std::vector<double>& g1, const std::vector<double>& g3) {
    ASSERT_EQ(g1.size(), g3.size());
    double most = 0;
    for (const double value : g3) most = std::max(most, std::abs(value));
    for (std::size_t i = 0; i < g1.size(); ++i) ASSERT_NEAR(g3[i], 3 * g1[i], 1e-6 * most);
  };
  expect_thrice(first.grad_weight, second.grad_weight);
  expect_thrice(first.grad_hidden, second.grad_hidden);
}

TEST_F(Repeat, ManyForwardsMayBeOutstanding) {
  const Sample a = fill(busy_problem(), ranks(), 13);
  const Sample b = fill_rows(busy_problem(), 20, ranks(), 14);
  const Loss loss = make(a);
  Tensors first = place(a);
  Tensors second = place(b);
  Saved saved_a = loss.make_saved();
  Saved saved_b = loss.make_saved();
  loss.forward(first.inputs(), first.outputs(), &saved_a, {test_stream()});
  loss.forward(second.inputs(), second.outputs(), &saved_b, {test_stream()});
  loss.backward(first.inputs(), saved_a, first.upstreams(), first.gradients(), {test_stream()});
  loss.backward(second.inputs(), saved_b, second.upstreams(), second.gradients(), {test_stream()});
  loss.wait(test_stream());
  EXPECT_EQ(differences(a, whole(a, first.answer(), ranks()), loss.plan()), "");
  EXPECT_EQ(differences(b, whole(b, second.answer(), ranks()), loss.plan()), "");
}

TEST_F(Repeat, AForwardWithoutItsBackwardAddsNothingToMainGrad) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = busy_problem(DType::bfloat16);
    problem.layout = layout;
    problem.grad_weight = GradDType::float32;
    Style into_main_grad;
    into_main_grad.accumulate = true;
    const Sample dropped = fill(problem, ranks(), 17);
    const Sample sample = fill(problem, ranks(), 18);
    const Loss loss = make(sample);
    const Execution on{test_stream()};
    const Tensors alone = place(sample, into_main_grad);
    run(loss, alone, Way::two_step);

    const Tensors other = place(dropped);
    const Tensors tensors = place(sample, into_main_grad);
    Saved never_used = loss.make_saved();
    Saved saved = loss.make_saved();
    loss.forward(other.inputs(), other.outputs(), &never_used, on);
    loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
    loss.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), on);
    loss.wait(test_stream());
    EXPECT_EQ(tensors.all_bytes(), alone.all_bytes());
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
  }
}

TEST_F(Repeat, SavedMayLieInTheCallersMemory) {
  Problem problem = busy_problem();
  problem.keep_logits = 16;
  const Sample sample = fill(problem, ranks(), 15);
  const Loss loss = make(sample);
  const auto bytes = static_cast<std::int64_t>(loss.plan().saved_bytes);
  const DeviceArray memory(DType::uint8, bytes, 1, device());
  Saved saved = loss.make_saved(memory.data(), static_cast<std::size_t>(bytes));
  const Tensors tensors = place(sample);
  loss.forward(tensors.inputs(), tensors.outputs(), &saved, {test_stream()});
  loss.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), {test_stream()});
  loss.wait(test_stream());
  EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
  EXPECT_TRUE(memory.intact()) << "written past its end";
}

TEST_F(Repeat, ASavedServesTheLossThatMadeItAndNoOther) {
  const Sample sample = fill(busy_problem(), ranks(), 19);
  Problem larger = busy_problem();
  larger.logit_scale = 2;
  larger.keep_logits = 35;
  const Loss loss = make(sample);
  const Loss other(larger, communicator(), device());
  const Tensors tensors = place(sample);
  const Execution on{test_stream()};
  Saved saved = loss.make_saved();
  const auto refused = [&](const Loss& by, std::string_view why) {
    expect_error(ErrorCode::invalid_argument, {"saved", why},
                 [&] { by.forward(tensors.inputs(), tensors.outputs(), &saved, on); });
    expect_error(ErrorCode::invalid_argument, {"saved", why}, [&] {
      by.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), on);
    });
  };
  refused(other, "another Loss");
  Saved moved = std::move(saved);
  refused(loss, "moved");
  loss.forward(tensors.inputs(), tensors.outputs(), &moved, on);
  loss.backward(tensors.inputs(), moved, tensors.upstreams(), tensors.gradients(), on);
  loss.wait(test_stream());
  EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
}

TEST_F(Repeat, WorkspaceSavedAndTensorsMustNotMeet) {
  const Sample sample = fill(busy_problem(), ranks(), 20);
  const Loss loss(sample.problem, communicator(), device(), WorkspaceOwner::caller);
  const auto bytes = static_cast<std::int64_t>(loss.plan().workspace_bytes);
  const DeviceArray workspace(DType::uint8, bytes, 1, device());
  const auto size = static_cast<std::size_t>(bytes);
  const Tensors tensors = place(sample);
  const Execution on{test_stream(), workspace.data(), size};
  Saved saved = loss.make_saved(workspace.data(), size);
  expect_error(ErrorCode::invalid_argument, {"saved", "workspace"},
               [&] { loss.forward(tensors.inputs(), tensors.outputs(), &saved, on); });
  Outputs outputs = tensors.outputs();
  outputs.lse = Tensor(workspace.data(), outputs.lse.dtype(), outputs.lse.size(0), 1, device());
  expect_error(ErrorCode::invalid_argument, {"lse", "workspace"},
               [&] { loss.forward(tensors.inputs(), outputs, nullptr, on); });
}

// The error does not grow with the number of chunks.
TEST_F(Repeat, ManyChunksAreAsExactAsOne) {
  for (std::int64_t rows : {64, 1}) {
    Problem problem = plain_problem(64, 16, 37, DType::bfloat16);
    problem.chunking = {Chunking::Rule::rows, rows};
    problem.grad_weight = GradDType::float32;
    expect_reference(fill(problem, ranks(), 16));
  }
}

}  // namespace
}  // namespace shardloss::test
