// Passes captured in CUDA graphs and replayed with other data in the same buffers (case T32).
#include <atomic>
#include <chrono>
#include <optional>

#include "captured_graph.hpp"
#include "forwarding_transport.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Graph = GpuTest;

Problem graph_problem(DType dtype = DType::float32, Layout layout = Layout::replicated) {
  Problem problem = plain_problem(35, 19, 131, dtype);
  problem.bias = true;
  problem.entropy = true;
  problem.normalizer = true;
  problem.label_smoothing = 0.1;
  problem.z_loss = 0.01;
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 8};
  problem.keep_logits = 16;
  return problem;
}

/// Other data for the buffers of `first`: new hidden states, weights, targets, normalizer and
/// upstream.
Sample other_data(const Sample& first, std::uint64_t seed) {
  Sample sample = fill_rows(first.problem, first.data.rows, ranks(), seed);
  sample.split = first.split;
  const auto value = static_cast<double>(seed % 16);
  if (first.problem.normalizer) sample.data.normalizer = 2 + value;
  sample.data.upstream_loss = {0.5 + value / 4};
  return sample;
}

/// The same with `counted` rows that are not ignored, at the end.
Sample with_counted_rows(const Sample& first, std::uint64_t seed, std::int64_t counted) {
  Sample sample = other_data(first, seed);
  for (std::int64_t i = 0; i < sample.data.rows; ++i)
    sample.data.targets[static_cast<std::size_t>(i)] = i < sample.data.rows - counted
                                                           ? sample.problem.ignore_index
                                                           : (i * 37) % sample.problem.vocab;
  return sample;
}

void overwrite(const DeviceArray& to, const DeviceArray& from) {
  ASSERT_EQ(to.elements(), from.elements());
  if (from.empty()) return;
  const auto bytes = static_cast<std::size_t>(from.elements()) * size_of(from.tensor().dtype());
  SHARDLOSS_TEST_CUDA_CALL(
      cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, test_cuda_stream()));
}

void overwrite_inputs(const Tensors& to, const Tensors& from) {
  overwrite(to.hidden, from.hidden);
  overwrite(to.weight, from.weight);
  overwrite(to.bias, from.bias);
  overwrite(to.targets, from.targets);
  overwrite(to.normalizer, from.normalizer);
  overwrite(to.up_loss, from.up_loss);
}

/// Replays of one graph against eager calls with the same data, and against the reference.
void expect_replays_are_eager_calls(const Communicator& communicator, const Problem& problem,
                                    Way way) {
  const Sample first = other_data(fill(problem, ranks(), 40), 40);
  CapturedPass pass(first, communicator, way);
  Tensors& captured = pass.tensors;

  for (const Sample& sample :
       {first, other_data(first, 41), with_counted_rows(first, 42, 1),
        with_counted_rows(first, 43, 0), with_counted_rows(first, 44, 35), other_data(first, 45)}) {
    const Tensors eager(sample, rank(), ranks(), device());
    run(pass.loss, eager, way);
    captured.reset();
    overwrite_inputs(captured, eager);
    pass.replay();
    const std::string which = describe_options(sample);
    EXPECT_EQ(captured.all_bytes(), eager.all_bytes()) << which;
    EXPECT_EQ(differences(sample, whole(sample, captured.answer(), ranks()), pass.loss.plan()), "")
        << which;
    EXPECT_EQ(captured.overwritten(), "") << which;
  }
}

TEST_F(Graph, T32_AReplayWithNewDataIsBitwiseTheEagerCall) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const Layout layout : {Layout::replicated, Layout::row_sharded})
      for (const Way way : {Way::fused, Way::two_step})
        expect_replays_are_eager_calls(communicator(), graph_problem(dtype, layout), way);
}

TEST_F(Graph, T32_InvalidTargetsOfAReplayAreToldByWait) {
  const Sample sample = other_data(fill(graph_problem(), ranks(), 46), 46);
  CapturedPass pass(sample, communicator());
  Tensors& tensors = pass.tensors;

  std::vector<std::int64_t> targets = sample.data.targets;
  targets[20] = 131;
  tensors.targets.write(targets);
  expect_error(ErrorCode::invalid_target, {"row 20", "131"}, [&] { pass.replay(); });
  EXPECT_TRUE(std::isnan(tensors.loss.read().front()));

  tensors.targets.write(sample.data.targets);
  tensors.reset();
  pass.replay();
  EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), pass.loss.plan()), "");
}

/// The index is seen on the device only: nothing outside the rows is touched, all ranks are told.
TEST_F(Graph, ARowIndexOfAReplayThatPointsOutsideIsToldByWait) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = graph_problem(DType::float32, layout);
    problem.row_index = true;
    problem.keep_logits = 0;
    Sample sample = other_data(fill(problem, ranks(), 48), 48);
    sample.data.row_index.emplace();
    for (std::int64_t i = 0; i < sample.data.rows; i += 2) sample.data.row_index->push_back(i);
    CapturedPass pass(sample, communicator());
    Tensors& tensors = pass.tensors;

    const std::vector<double> good = tensors.row_index.read();
    const std::vector<double> good_targets = tensors.targets.read();
    for (const std::int64_t outside : {std::int64_t{-1}, sample.data.rows, std::int64_t{1} << 40}) {
      std::vector<std::int64_t> bent(good.begin(), good.end());
      if (layout == Layout::replicated || rank() == ranks() - 1) bent.back() = outside;
      tensors.row_index.write(bent);
      // An invalid target beside it does not hide it.
      std::vector<double> targets = good_targets;
      if (outside > 0 && !targets.empty()) targets.front() = 131;
      tensors.targets.write(targets);
      expect_error(ErrorCode::invalid_argument, {"row_index", std::to_string(outside)},
                   [&] { pass.replay(); });
      EXPECT_TRUE(std::isnan(tensors.loss.read().front()));
      EXPECT_EQ(tensors.overwritten(), "");
    }

    tensors.row_index.write(std::vector<std::int64_t>(good.begin(), good.end()));
    tensors.targets.write(good_targets);
    tensors.reset();
    pass.replay();
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), pass.loss.plan()), "")
        << name(layout);
  }
}

/// Keeps the mailbox that the Loss shows to its group.
class ObservedTransport final : public launch::ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  std::uint64_t started() const { return read(mailbox_->started); }
  std::uint64_t finished() const { return read(mailbox_->finished); }

  void watch(Mailbox* mailbox) override {
    mailbox_ = mailbox;
    to().watch(mailbox);
  }

 private:
  static std::uint64_t read(std::uint64_t& word) {
    return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
  }

  Mailbox* mailbox_ = nullptr;
};

// The ranks compare call numbers: those of replays have to count on, between eager ones too.
TEST_F(Graph, T32_CallNumbersAdvanceWithEveryReplay) {
  const Sample sample = other_data(fill(graph_problem(), ranks(), 47), 47);
  const auto observed = std::make_shared<ObservedTransport>(communicator());
  const Loss loss(sample.problem, Communicator(observed), device());
  const Tensors tensors = place(sample);
  Saved saved = loss.make_saved();
  std::uint64_t calls = 0;
  const auto expect_calls = [&](std::uint64_t more, const char* what) {
    loss.wait(test_stream());
    calls += more;
    EXPECT_EQ(observed->started(), calls) << what;
    EXPECT_EQ(observed->finished(), calls) << what;
  };
  enqueue(loss, tensors, Way::two_step, saved);
  expect_calls(2, "eager");
  const CapturedGraph graph([&] { enqueue(loss, tensors, Way::two_step, saved); });
  expect_calls(0, "a capture runs nothing");
  for (int i = 0; i < 3; ++i) graph.replay();
  expect_calls(6, "replays in a row");
  enqueue(loss, tensors, Way::fused, saved);
  expect_calls(1, "eager after replays");
  graph.replay();
  expect_calls(2, "a replay after an eager call");
}

/// Makes a graph over a group of its own and ends the group; how long that took.
Clock::duration end_group_under(std::optional<CapturedGraph>& graph, bool end_graph_first) {
  const Sample sample = other_data(fill(graph_problem(), ranks(), 48), 48);
  Clock::time_point begin;
  {
    const Communicator own = group(5s);
    const Loss loss(sample.problem, own, device());
    const Tensors tensors(sample, rank(), ranks(), device());
    Saved saved = loss.make_saved();
    enqueue(loss, tensors, Way::fused, saved);
    loss.wait(test_stream());
    graph.emplace([&] { enqueue(loss, tensors, Way::fused, saved); });
    graph->replay();
    loss.wait(test_stream());
    if (end_graph_first) graph.reset();
    begin = Clock::now();
  }
  return Clock::now() - begin;
}

TEST_F(Graph, AGroupThatOutlivesItsGraphEndsAtOnce) {
  std::optional<CapturedGraph> graph;
  EXPECT_LT(end_group_under(graph, true), 2s);
}

// NCCL's destroy waits for graphs that hold its operations: the group must not wait with it.
TEST_F(Graph, AGroupThatEndsBeforeItsGraphDoesNotHang) {
  std::optional<CapturedGraph> graph;
  EXPECT_LT(end_group_under(graph, false), 5s + 2s);
  graph.reset();
  EXPECT_EQ(check(other_data(fill(graph_problem(), ranks(), 49), 49), group(), Way::fused), "");
}

}  // namespace
}  // namespace shardloss::test
