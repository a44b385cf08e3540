// What crosses the wire is what the plan says, and a row-sharded pass holds nothing of the size of
// the group's hidden states.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "forwarding_transport.hpp"
#include "rank_test.hpp"
#include "shardloss/embedding.hpp"
#include "uneven_split.hpp"

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

/// The sample of spread() with every option on; `soft`: its targets are probabilities.
Sample with_every_option(Layout layout, std::int64_t rows, bool soft) {
  const Sample plain = spread(layout, rows);
  Problem problem = plain.problem;
  problem.bias = problem.class_weights = problem.entropy = true;
  problem.soft_targets = soft;
  problem.label_smoothing = 0.1;
  problem.z_loss = 0.01;
  problem.softcap = 5;
  problem.logit_scale = 1.3;
  Sample sample = fill(problem, ranks(), 31);
  sample.split = plain.split;
  sample.data.class_weights.assign(37, 0.5);
  sample.data.token_weights.assign(static_cast<std::size_t>(rows), 0.75);
  sample.data.upstream_lse = sample.data.upstream_entropy = {0.5};
  if (!soft) sample.data.upstream_logprob = {0.25};
  return sample;
}

TEST_F(Wire, NoOptionTakesACallOrAByteMore) {
  const auto traffic = [&](const Sample& sample, Way way) {
    const Loss loss = make(sample);
    const Tensors tensors = place(sample);
    return counted([&] { run(loss, tensors, way); });
  };
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const Way way : {Way::fused, Way::two_step}) {
      const Traffic want = traffic(spread(layout, 29), way);
      for (const bool soft : {false, true}) {
        const Traffic got = traffic(with_every_option(layout, 29, soft), way);
        EXPECT_EQ(got.calls, want.calls) << name(layout) << (soft ? ", soft targets" : "");
        EXPECT_EQ(got.bytes, want.bytes) << name(layout) << (soft ? ", soft targets" : "");
      }
    }
  }
}

// The plan counts even rows, so that uneven ones are held against the formulas of WIRE.md.
TEST_F(Wire, UnevenRowsTakeTheCallsAndBytesOfTheFormulas) {
  if (ranks() == 1) GTEST_SKIP() << "nothing leaves the rank";
  constexpr std::int64_t width = 11, chunk_rows = 6;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Accumulation accumulation : {Accumulation::automatic, Accumulation::compact}) {
      Problem problem = plain_problem(60, width, 37, dtype);
      problem.layout = Layout::row_sharded;
      problem.chunking = {Chunking::Rule::rows, chunk_rows};
      problem.accumulation = accumulation;
      const std::int64_t e = dtype == DType::bfloat16 ? 2 : 4;
      const std::int64_t f = accumulation == Accumulation::compact ? e : 4;
      const Loss loss(problem, communicator(), device());
      for (const std::int64_t rows : {0, 1, 5, 29, 60}) {
        for (int hole = 0; hole < ranks(); ++hole) {
          Sample sample = fill_rows(problem, rows, ranks(), 32);
          sample.split = uneven_split(rows, ranks(), hole);
          SCOPED_TRACE(describe_options(sample));
          const std::int64_t chunks = fewest_chunks(sample.split, chunk_rows);
          const std::int64_t exchange = 128 + 32 * chunk_rows;
          const std::int64_t gathered = sample.own_rows(rank()) * (width * e + 40);
          const std::int64_t gradient = rows * width * f;
          const int closings = on_gpu() && rows > 0 ? 1 : 0;
          const Tensors tensors = place(sample);
          const Traffic fused = counted([&] { run(loss, tensors, Way::fused); });
          EXPECT_EQ(fused.bytes, (chunks + 1) * exchange + gathered + gradient + closings * 128);
          EXPECT_EQ(fused.calls, chunks + 1 + 2 * chunks + chunks + closings);
          const Execution on{test_stream()};
          Saved saved = loss.make_saved();
          const Traffic forward = counted([&] {
            loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
            loss.wait(test_stream());
          });
          EXPECT_EQ(forward.bytes, (chunks + 1) * exchange + gathered + closings * 128);
          EXPECT_EQ(forward.calls, chunks + 1 + 2 * chunks + closings);
          const Traffic backward = counted([&] {
            loss.backward(tensors.inputs(), saved, {}, tensors.gradients(), on);
            loss.wait(test_stream());
          });
          EXPECT_EQ(backward.bytes, exchange + gathered + gradient + closings * 128);
          EXPECT_EQ(backward.calls, 1 + 2 * chunks + chunks + closings);
        }
      }
    }
  }
}

/// Bytes that this rank handed to collectives, by what they were.
struct Crossed {
  std::int64_t hidden = 0;     ///< rows of X
  std::int64_t inputs = 0;     ///< the records that travel with them
  std::int64_t summed = 0;     ///< dX, all-reduced
  std::int64_t scattered = 0;  ///< dX, reduce-scattered
  std::int64_t unknown = 0;    ///< gathered, and no exchange of statistics or headers either
};

/// Counts what crosses, and tells rows of X from the rest by their size.
class CountingTransport final : public launch::ForwardingTransport {
 public:
  CountingTransport(Communicator inner, std::int64_t hidden_row, const Plan& plan)
      : ForwardingTransport(std::move(inner)),
        hidden_row_(hidden_row),
        exchange_(header + plan.chunk_rows * 32) {}

  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override {
    kind_of(bytes) += bytes[static_cast<std::size_t>(rank())];
    return to().all_gather(data, bytes, compute);
  }
  Ticket all_reduce(void* data, std::int64_t elements, DType dtype, Stream compute) override {
    crossed_.summed += elements * static_cast<std::int64_t>(size_of(dtype));
    return to().all_reduce(data, elements, dtype, compute);
  }
  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override {
    crossed_.scattered += total(counts) * static_cast<std::int64_t>(size_of(dtype));
    return to().reduce_scatter(data, counts, dtype, compute);
  }

  /// Since the last time.
  Crossed take() { return std::exchange(crossed_, {}); }

 private:
  static constexpr std::int64_t header = 128, record = 40;

  static std::int64_t total(std::span<const std::int64_t> parts) {
    return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  }

  // Chunks of 6 rows hold no number of records that is as long as rows of 11 elements.
  std::int64_t& kind_of(std::span<const std::int64_t> bytes) {
    const auto all_are = [&](std::int64_t size) {
      return std::all_of(bytes.begin(), bytes.end(), [&](std::int64_t b) { return b == size; });
    };
    if (all_are(exchange_) || all_are(header)) return exchanged_;
    if (total(bytes) % hidden_row_ == 0) return crossed_.hidden;
    if (total(bytes) % record == 0) return crossed_.inputs;
    return crossed_.unknown;
  }

  std::int64_t hidden_row_;
  std::int64_t exchange_;
  std::int64_t exchanged_ = 0;
  Crossed crossed_;
};

// Fused: dX once; row_sharded: X once too. In two steps X crosses twice, dX once.
TEST_F(Wire, HiddenStatesAndTheirGradientCrossAsOftenAsTheyMust) {
  if (ranks() == 1) GTEST_SKIP() << "nothing leaves the rank";
  constexpr std::int64_t rows = 29, width = 11;
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const Sample sample = spread(layout, rows, dtype);
      const bool sharded = layout == Layout::row_sharded;
      const std::int64_t element = dtype == DType::bfloat16 ? 2 : 4;
      const std::int64_t gathered = sharded ? sample.own_rows(rank()) : 0;
      const auto counting =
          std::make_shared<CountingTransport>(communicator(), width * element, make(sample).plan());
      const Loss loss(sample.problem, Communicator(counting), device());
      const Tensors tensors = place(sample);
      const Execution on{test_stream()};
      const auto expect_crossed = [&](const char* way, std::int64_t gradients) {
        loss.wait(test_stream());
        SCOPED_TRACE(std::string(name(layout)) + " " + std::string(name(dtype)) + " " + way);
        const Crossed crossed = counting->take();
        EXPECT_EQ(crossed.hidden, gathered * width * element);
        EXPECT_EQ(crossed.inputs, gathered * 40);
        const std::int64_t gradient = gradients * rows * width * 4;  // float32 partial sums
        EXPECT_EQ(crossed.summed, sharded ? 0 : gradient);
        EXPECT_EQ(crossed.scattered, sharded ? gradient : 0);
        EXPECT_EQ(crossed.unknown, 0);
      };
      loss.forward_backward(tensors.inputs(), tensors.outputs(), {}, tensors.gradients(), on);
      expect_crossed("forward_backward", 1);
      Saved saved = loss.make_saved();
      loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
      expect_crossed("forward", 0);
      loss.backward(tensors.inputs(), saved, {}, tensors.gradients(), on);
      expect_crossed("backward", 1);
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
