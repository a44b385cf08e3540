// What crosses the wire is what the plan says, and a row-sharded pass holds nothing of the size of
// the group's hidden states.
#include <cmath>
#include <fstream>
#include <functional>
#include <string>

#include "rank_test.hpp"
#include "shardloss/embedding.hpp"

namespace shardloss::test {
namespace {

/// A problem of `rows` rows in chunks of 6, spread evenly where they are sharded.
Sample spread(Layout layout, std::int64_t rows, DType dtype = DType::float32) {
  Problem problem = plain_problem(rows, 11, 37, dtype);
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 6};
  Sample sample = fill(problem, ranks(), 31);
  sample.split.clear();
  for (int r = 0; r < ranks() && layout == Layout::row_sharded; ++r)
    sample.split.push_back(rows / ranks() + (r < rows % ranks() ? 1 : 0));
  return sample;
}

/// What the plan says of a way, and of what it carries (everything where empty).
Traffic planned(const Plan& plan, const std::string& way, const std::string& what = "") {
  Traffic sum;
  for (const PlannedCollective& item : plan.collectives) {
    if (item.way != way || (!what.empty() && item.name != what)) continue;
    sum.calls += item.calls;
    sum.bytes += item.bytes;
  }
  return sum;
}

class Wire : public RankTest {
 protected:
  Traffic counted(const std::function<void()>& action) const {
    const Traffic before = communicator().traffic();
    action();
    const Traffic after = communicator().traffic();
    return {after.calls - before.calls, after.bytes - before.bytes};
  }
};

TEST_F(Wire, EveryWayTakesTheCallsAndBytesOfThePlan) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const std::int64_t rows : {1, 5, 6, 29, 60}) {
        SCOPED_TRACE(std::string(name(layout)) + " " + std::string(name(dtype)) + " rows " +
                     std::to_string(rows));
        const Sample sample = spread(layout, rows, dtype);
        const Loss loss = make(sample);
        const Tensors tensors = place(sample);
        const Traffic fused = counted([&] { run(loss, tensors, Way::fused); });
        const Traffic expected = planned(loss.plan(), "forward_backward");
        EXPECT_EQ(fused.bytes, expected.bytes);
        EXPECT_EQ(fused.calls, expected.calls);
        const Traffic two_step = counted([&] { run(loss, tensors, Way::two_step); });
        const Traffic forward = planned(loss.plan(), "forward");
        const Traffic backward = planned(loss.plan(), "backward");
        EXPECT_EQ(two_step.bytes, forward.bytes + backward.bytes);
        EXPECT_EQ(two_step.calls, forward.calls + backward.calls);
      }
    }
  }
}

// Fused: dX once; row_sharded: X once too. In two steps X crosses twice, dX once.
TEST_F(Wire, HiddenStatesAndTheirGradientCrossAsOftenAsTheyMust) {
  if (ranks() == 1) return;
  constexpr std::int64_t rows = 29, width = 11;
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const Sample sample = spread(layout, rows, dtype);
      const Plan plan = make(sample).plan();
      const bool sharded = layout == Layout::row_sharded;
      const auto element = static_cast<std::int64_t>(size_of(dtype));
      const std::int64_t once = sharded ? sample.own_rows(rank()) * width * element : 0;
      for (const char* way : {"forward_backward", "forward", "backward"})
        EXPECT_EQ(planned(plan, way, "hidden").bytes, once) << way;
      const std::int64_t gradient = rows * width * 4;  // float32 partial sums
      EXPECT_EQ(planned(plan, "forward_backward", "grad_hidden").bytes, gradient);
      EXPECT_EQ(planned(plan, "forward", "grad_hidden").bytes, 0);
      EXPECT_EQ(planned(plan, "backward", "grad_hidden").bytes, gradient);
    }
  }
}

// Look-up: the output once, row_sharded ids too. Scatter: row_sharded, ids and gradient once.
TEST_F(Wire, TheEmbeddingMovesItsRowsOnce) {
  constexpr std::int64_t rows = 29, width = 11;
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    const Sample sample = spread(layout, rows);
    const bool sharded = layout == Layout::row_sharded;
    const std::int64_t own = sample.own_rows(rank());
    const VocabParallelEmbedding embedding(sample.problem, communicator(), device());
    const Tensors tensors = place(sample);
    // The header, and on GPUs what closes a call, as for the loss.
    const std::int64_t header = 128 + planned(make(sample).plan(), "forward", "closing").bytes;
    DeviceArray ids(DType::int64, own, 1, device());
    ids.write(std::vector<std::int64_t>(static_cast<std::size_t>(own), 1));
    const DeviceArray output(DType::float32, own, width, width, device());
    std::vector<std::int64_t> split;
    if (sharded) split = sample.split;
    const Traffic forward = counted([&] {
      embedding.forward(ids.tensor(), tensors.weight.tensor(), output.tensor(), split,
                        test_stream());
      embedding.wait(test_stream());
    });
    const Traffic backward = counted([&] {
      embedding.backward(ids.tensor(), output.tensor(), tensors.grad_weight.tensor(), false, split,
                         test_stream());
      embedding.wait(test_stream());
    });
    const std::int64_t id_bytes = sharded ? own * 8 : 0;
    EXPECT_EQ(forward.bytes, ranks() == 1 ? 0 : header + id_bytes + rows * width * 4);
    EXPECT_EQ(backward.bytes,
              ranks() == 1 ? 0 : header + id_bytes + (sharded ? own * width * 4 : 0));
  }
}

/// The most memory that the process has had resident since the last call of forget_peak.
std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

/// False where the machine does not let a process forget, or a sanitizer keeps books of its own.
bool forget_peak() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  std::ofstream clear("/proc/self/clear_refs");
  clear << 5 << std::flush;
  return clear.good() && peak_bytes() > 0;
#endif
}

TEST_F(Wire, ARowShardedPassHoldsNoFullHiddenStates) {
  if (on_gpu()) GTEST_SKIP() << "host memory is looked at";
  constexpr std::int64_t rows = 16384, width = 512, vocab = 16;
  constexpr std::int64_t full = rows * width * 4;  // 32 MiB
  Problem problem = plain_problem(rows, width, vocab);
  problem.layout = Layout::row_sharded;
  problem.chunking = {Chunking::Rule::rows, 64};
  std::vector<std::int64_t> split;
  for (int r = 0; r < ranks(); ++r) split.push_back(rows / ranks() + (r < rows % ranks() ? 1 : 0));
  const std::int64_t own = split[static_cast<std::size_t>(rank())];
  const Loss loss(problem, communicator());
  const std::int64_t shard = loss.plan().shard.width;
  const std::vector<float> hidden(static_cast<std::size_t>(own * width), 0.5F);
  const std::vector<float> weight(static_cast<std::size_t>(shard * width), 0.25F);
  const std::vector<std::int64_t> targets(static_cast<std::size_t>(own), 3);
  std::vector<float> grad_hidden(hidden.size(), 1), grad_weight(weight.size(), 1);
  float value = 0;
  Inputs in;
  in.hidden = ConstTensor(hidden.data(), DType::float32, {own, width}, {width, 1});
  in.weight = ConstTensor(weight.data(), DType::float32, {shard, width}, {width, 1});
  in.targets = ConstTensor(targets.data(), DType::int64, own, 1);
  in.rows_per_rank = split;
  Outputs out;
  out.loss = Tensor(&value, DType::float32);
  Gradients grad;
  grad.hidden = Tensor(grad_hidden.data(), DType::float32, {own, width}, {width, 1});
  grad.weight = Tensor(grad_weight.data(), DType::float32, {shard, width}, {width, 1});

  const bool measured = forget_peak();
  if (count(measured) != ranks()) GTEST_SKIP() << "no peak of resident memory here";
  const std::int64_t before = peak_bytes();
  loss.forward_backward(in, out, {}, grad);
  EXPECT_LT(peak_bytes() - before, full / 4);
  EXPECT_NEAR(value, std::log(16.0), 1e-4);
}

}  // namespace
}  // namespace shardloss::test
