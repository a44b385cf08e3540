// A pass allocates nothing and stays inside the workspace that the plan promises.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "captured_graph.hpp"
#include "shardloss/embedding.hpp"

namespace shardloss::test {
namespace {

using Allocation = GpuTest;

Problem full_problem(DType dtype = DType::bfloat16, Layout layout = Layout::replicated) {
  Problem problem = plain_problem(96, 64, 1003, dtype);
  problem.bias = true;
  problem.entropy = true;
  problem.label_smoothing = 0.1;
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 32};
  problem.keep_logits = 32;
  return problem;
}

/// What one rank computes row by row in shared memory, where nothing but this is asked for.
Problem bare_problem(DType dtype = DType::bfloat16, Layout layout = Layout::replicated) {
  Problem problem = plain_problem(96, 64, 40003, dtype);
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 32};
  return problem;
}

/// Every kind of call, each only enqueued.
class Calls {
 public:
  Calls(const Problem& problem, const Communicator& communicator)
      : sample_(fill(problem, ranks(), 60)),
        loss_(problem, communicator, device()),
        embedding_(problem, communicator, device()),
        tensors_(sample_, rank(), ranks(), device()),
        saved_(loss_.make_saved()),
        total_(DeviceArray::one(DType::float32, device())),
        looked_up_(problem.dtype, sample_.own_rows(rank()), problem.hidden, problem.hidden,
                   device()),
        bare_sample_(fill(bare_problem(problem.dtype, problem.layout), ranks(), 64)),
        bare_loss_(bare_sample_.problem, communicator, device()),
        bare_tensors_(bare_sample_, rank(), ranks(), device(), without_argmax()) {
    total_.write(std::vector<double>{0});
    if (problem.layout == Layout::row_sharded)
      for (int r = 0; r < ranks(); ++r) rows_.push_back(sample_.own_rows(r));
  }

  std::vector<std::pair<const char*, std::function<void()>>> all() {
    const Execution on{test_stream()};
    return {
        {"forward",
         [this, on] { loss_.forward(tensors_.inputs(), tensors_.outputs(), nullptr, on); }},
        {"forward that saves",
         [this, on] { loss_.forward(tensors_.inputs(), tensors_.outputs(), &saved_, on); }},
        {"backward",
         [this, on] {
           loss_.backward(tensors_.inputs(), saved_, tensors_.upstreams(), tensors_.gradients(),
                          on);
         }},
        {"forward_backward",
         [this, on] {
           loss_.forward_backward(tensors_.inputs(), tensors_.outputs(), tensors_.upstreams(),
                                  tensors_.gradients(), on);
         }},
        {"forward_backward and nothing else",
         [this, on] {
           bare_loss_.forward_backward(bare_tensors_.inputs(), bare_tensors_.outputs(),
                                       bare_tensors_.upstreams(), bare_tensors_.gradients(), on);
         }},
        {"add_denominator",
         [this, on] { loss_.add_denominator(tensors_.inputs(), total_.tensor(), on); }},
        {"embedding forward",
         [this, on] {
           embedding_.forward(tensors_.targets.tensor(), tensors_.weight.tensor(),
                              looked_up_.tensor(), rows_, on.stream);
         }},
        {"embedding backward",
         [this, on] {
           embedding_.backward(tensors_.targets.tensor(), looked_up_.tensor(),
                               tensors_.grad_weight.tensor(), true, rows_, on.stream);
         }},
    };
  }

  void wait() const {
    loss_.wait(test_stream());
    bare_loss_.wait(test_stream());
    embedding_.wait(test_stream());
  }

 private:
  Sample sample_;
  Loss loss_;
  VocabParallelEmbedding embedding_;
  Tensors tensors_;
  Saved saved_;
  DeviceArray total_;
  DeviceArray looked_up_;
  Sample bare_sample_;
  Loss bare_loss_;
  Tensors bare_tensors_;
  std::vector<std::int64_t> rows_;
};

/// Bytes that the default pool of cudaMallocAsync holds, and the most that were in use.
std::pair<std::uint64_t, std::uint64_t> pool_bytes() {
  cudaMemPool_t pool = nullptr;
  SHARDLOSS_TEST_CUDA_CALL(cudaDeviceGetDefaultMemPool(&pool, device().index));
  std::uint64_t held = 0;
  std::uint64_t most = 0;
  SHARDLOSS_TEST_CUDA_CALL(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &held));
  SHARDLOSS_TEST_CUDA_CALL(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &most));
  return {held, most};
}

TEST_F(Allocation, CallsAllocateNothing) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Calls calls(full_problem(DType::bfloat16, layout), communicator());
    const auto run_all = [&] {
      for (const auto& [name, call] : calls.all()) call();
      calls.wait();
    };
    for (int i = 0; i < 3; ++i) run_all();
    const std::size_t free_before = free_memory();
    const auto pool_before = pool_bytes();
    for (int i = 0; i < 10; ++i) run_all();
    EXPECT_EQ(free_memory(), free_before) << name(layout);
    EXPECT_EQ(pool_bytes(), pool_before) << name(layout);
  }
}

// The strictest capture refuses what may allocate or synchronise.
TEST_F(Allocation, EveryCallCanBeCapturedInTheStrictestMode) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
      Calls calls(full_problem(dtype, layout), communicator());
      for (const auto& [what, call] : calls.all()) {
        call();
        calls.wait();
        SCOPED_TRACE(std::string(what) + " " + std::string(name(dtype)) + " " +
                     std::string(name(layout)));
        const CapturedGraph graph(call);
        graph.replay();
        calls.wait();
      }
    }
  }
}

/// Device memory between two guards.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes) : bytes_(bytes) {
    SHARDLOSS_TEST_CUDA_CALL(
        cudaMalloc(reinterpret_cast<void**>(&memory_), bytes + 2 * guard_bytes));
    SHARDLOSS_TEST_CUDA_CALL(cudaMemset(memory_, guard_value, bytes + 2 * guard_bytes));
    poison();
  }
  ~GuardedMemory() { cudaFree(memory_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  void* data() const { return memory_ + guard_bytes; }
  std::size_t bytes() const { return bytes_; }
  /// All ones: NaN in every floating dtype.
  void poison() const {
    SHARDLOSS_TEST_CUDA_CALL(cudaMemset(data(), 0xff, bytes_));
    SHARDLOSS_TEST_CUDA_CALL(cudaDeviceSynchronize());
  }
  bool intact() const { return holds(memory_) && holds(memory_ + guard_bytes + bytes_); }

 private:
  static constexpr std::size_t guard_bytes = std::size_t{1} << 20;
  static constexpr int guard_value = 0x5a;

  static bool holds(const std::byte* guard) {
    std::vector<std::byte> bytes(guard_bytes);
    SHARDLOSS_TEST_CUDA_CALL(cudaDeviceSynchronize());
    SHARDLOSS_TEST_CUDA_CALL(cudaMemcpy(bytes.data(), guard, guard_bytes, cudaMemcpyDefault));
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::byte b) { return b == std::byte{guard_value}; });
  }

  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

/// Both ways of a sample in a poisoned workspace, and a poisoned Saved, of just the planned sizes.
void expect_guards_hold(const Sample& sample, const Communicator& communicator,
                        const Style& style = {}) {
  SCOPED_TRACE(describe_options(sample));
  const Loss loss(sample.problem, communicator, device(), WorkspaceOwner::caller);
  const GuardedMemory workspace(loss.plan().workspace_bytes);
  const GuardedMemory kept(loss.plan().saved_bytes);
  Saved saved = loss.make_saved(kept.data(), kept.bytes());
  const Execution on{test_stream(), workspace.data(), workspace.bytes()};
  Tensors tensors = Tensors(sample, rank(), ranks(), device(), style);
  const auto expect_right = [&] {
    loss.wait(test_stream());
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
    EXPECT_TRUE(workspace.intact()) << "written beside the workspace";
    EXPECT_TRUE(kept.intact()) << "written beside Saved";
  };

  loss.forward_backward(tensors.inputs(), tensors.outputs(), tensors.upstreams(),
                        tensors.gradients(), on);
  expect_right();
  tensors.reset();
  workspace.poison();
  loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
  loss.wait(test_stream());
  workspace.poison();
  loss.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), on);
  expect_right();
}

TEST_F(Allocation, CallsStayInsideAWorkspaceOfThePlannedSize) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
      expect_guards_hold(fill(full_problem(dtype, layout), ranks(), 61), communicator());
      expect_guards_hold(fill(bare_problem(dtype, layout), ranks(), 61), communicator(),
                         without_argmax());
    }
  }
}

TEST_F(Allocation, RandomCallsStayInsideAWorkspaceOfThePlannedSize) {
  int seen = 0;
  for (std::uint64_t seed = 7000; seen < 40; ++seed) {
    const Sample sample = random_sample(ranks(), seed);
    if (sample.problem.dtype == DType::float64) continue;
    ++seen;
    expect_guards_hold(sample, communicator());
  }
}

/// A problem whose workspace is large beside what CUDA allocates in granules.
Problem large_problem() {
  Problem problem = plain_problem(8192, 1024, 65536, DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, 2048};
  return problem;
}

TEST_F(Allocation, ALossTakesThePlannedMemoryAndGivesItBack) {
  // Libraries load their kernels with the first Loss.
  EXPECT_EQ(check(fill(full_problem(), ranks(), 62), communicator(), Way::fused), "");
  const std::size_t before = free_memory();
  {
    const Loss loss(large_problem(), communicator(), device());
    const auto taken = static_cast<double>(before) - static_cast<double>(free_memory());
    const auto planned = static_cast<double>(loss.plan().workspace_bytes);
    EXPECT_LE(std::abs(taken - planned), 0.02 * planned)
        << "taken " << taken << ", planned " << planned;
  }
  EXPECT_EQ(free_memory(), before);
}

bool has_buffer_of(const Plan& plan, std::size_t bytes) {
  return std::any_of(plan.buffers.begin(), plan.buffers.end(),
                     [&](const PlannedBuffer& buffer) { return buffer.bytes >= bytes; });
}

TEST_F(Allocation, AFrozenHeadTakesNoBufferOfTheWeightsSize) {
  Problem problem = plain_problem(64, 2048, 32768 * ranks(), DType::bfloat16);
  problem.chunking = {Chunking::Rule::rows, 16};
  const std::size_t weight_bytes = std::size_t{32768} * 2048 * 2;
  const Plan trained = make_plan(problem, ranks(), rank(), DeviceKind::cuda);
  EXPECT_TRUE(has_buffer_of(trained, 2 * weight_bytes)) << "the fp32 sums of a trained head";

  problem.grad_weight = GradDType::none;
  {
    const Loss first(problem, communicator(), device());
  }  // NCCL's buffers come with the first call
  const std::size_t before = free_memory();
  const Loss loss(problem, communicator(), device());
  EXPECT_FALSE(has_buffer_of(loss.plan(), weight_bytes)) << to_string(loss.plan());
  EXPECT_LT(before - free_memory(), weight_bytes);
}

TEST_F(Allocation, AFrozenHeadGivesTheHiddenGradient) {
  for (const Layout layout : {Layout::replicated, Layout::row_sharded}) {
    Problem problem = full_problem(DType::bfloat16, layout);
    problem.grad_weight = GradDType::none;
    expect_reference(fill(problem, ranks(), 63));
  }
}

}  // namespace
}  // namespace shardloss::test
