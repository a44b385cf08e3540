// Small problems that between them run every kernel variant, for compute-sanitizer's four tools:
// sizes are as small as each variant allows.
#include <utility>
#include <vector>

#include "elements.hpp"
#include "gpu_test.hpp"
#include "shardloss/embedding.hpp"

namespace shardloss::test {
namespace {

constexpr DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16};

class SanitizerTarget : public GpuTest {
 protected:
  void expect_sample(const Sample& sample, Way way = Way::fused, bool outputs = true) const {
    Style style;
    style.outputs = outputs;
    expect_reference(sample, way, style);
  }
  void expect_problem(const Problem& problem, Way way = Way::fused, bool outputs = true) const {
    expect_sample(fill(problem, ranks(), 80), way, outputs);
  }
};

/// Two vectors of 16 bytes and a tail of three columns for each rank, two chunks.
Problem small(DType dtype) {
  Problem problem = plain_problem(
      6, 8,
      (2 * 16 / static_cast<std::int64_t>(size_of(dtype)) + 3) * static_cast<std::int64_t>(ranks()),
      dtype);
  problem.chunking = {Chunking::Rule::rows, 4};
  return problem;
}

/// The families of kernels over logits, as their file chooses among them.
std::vector<std::pair<const char*, Problem>> families(DType dtype) {
  Problem plain = small(dtype);
  Problem sums = plain;
  sums.entropy = true;
  sums.label_smoothing = 0.1;
  Problem classes = plain;
  classes.class_weights = true;
  classes.label_smoothing = 0.1;
  Problem soft = plain;
  soft.soft_targets = true;
  Problem soft_classes = soft;
  soft_classes.class_weights = true;
  soft_classes.label_smoothing = 0.1;
  return {{"plain", plain},
          {"entropy and smoothing", sums},
          {"class weights", classes},
          {"soft targets", soft},
          {"soft targets with class weights", soft_classes}};
}

Sample sample_of(const Problem& problem) {
  Sample sample = fill(problem, ranks(), 81);
  if (problem.class_weights)
    for (std::int64_t v = 0; v < problem.vocab; ++v)
      sample.data.class_weights.push_back(0.5 + static_cast<double>(v % 4) / 4);
  return sample;
}

TEST_F(SanitizerTarget, EveryFamilyWithAndWithoutACap) {
  for (const DType dtype : dtypes) {
    for (auto [name, problem] : families(dtype)) {
      for (const double cap : {0.0, 5.0}) {
        SCOPED_TRACE(name);
        problem.softcap = cap;
        expect_sample(sample_of(problem));
      }
    }
  }
}

TEST_F(SanitizerTarget, WithoutOutputs) {
  for (const DType dtype : dtypes) {
    for (const double cap : {0.0, 5.0}) {
      Problem problem = small(dtype);
      problem.softcap = cap;
      expect_problem(problem, Way::fused, false);
    }
  }
}

// They may be float32, as in the families above, or have the problem's dtype.
TEST_F(SanitizerTarget, SoftTargetsOf16Bit) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    Problem problem = small(dtype);
    problem.soft_targets = true;
    Sample sample = fill(problem, ranks(), 85);
    for (double& q : sample.data.soft_targets) q = rounded(q, dtype);
    Tensors tensors = place(sample);
    const Loss loss = make(sample);
    const Shard shard = loss.plan().shard;
    std::vector<double> own;
    for (std::int64_t i = 0; i < sample.data.rows; ++i)
      for (std::int64_t v = 0; v < shard.width; ++v)
        own.push_back(sample.data.soft_targets[static_cast<std::size_t>(
            i * sample.data.vocab_padded + shard.first + v)]);
    tensors.soft_targets = DeviceArray(dtype, sample.data.rows, shard.width, shard.width, device());
    tensors.soft_targets.write(own);
    run(loss, tensors, Way::fused);
    EXPECT_EQ(differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan()), "");
  }
}

// float32 logits whose 16-bit gradients overwrite them; sums of their columns are a kernel apart.
TEST_F(SanitizerTarget, Float32LogitsOf16BitProblems) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (auto [name, problem] : families(dtype)) {
      SCOPED_TRACE(name);
      problem.accumulation = Accumulation::accurate;
      problem.bias = true;
      problem.softcap = dtype == DType::float16 ? 5 : 0;
      expect_sample(sample_of(problem));
    }
  }
}

TEST_F(SanitizerTarget, TailsOfOneSevenAndEightKPlusThreeColumns) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t columns : {1, 7, 19}) {
      Problem problem = small(dtype);
      problem.vocab = columns * ranks();
      expect_problem(problem);
    }
  }
}

// One kernel for statistics and gradient, where a group is one rank: a block a row, a cluster a
// row, with logits scaled and not.
TEST_F(SanitizerTarget, RowsInSharedMemory) {
  for (const std::int64_t columns : {35, 18435, 40003}) {
    for (const double scale : {1.0, 0.5}) {
      Problem problem = small(DType::bfloat16);
      problem.hidden = 2;
      problem.vocab = columns * ranks();
      problem.logit_scale = scale;
      expect_reference(fill(problem, ranks(), 88), Way::fused, without_argmax());
    }
  }
}

// Long rows: whole batches of vectors, and blocks that share a row.
TEST_F(SanitizerTarget, LongRows) {
  for (const DType dtype : dtypes) {
    Problem problem = small(dtype);
    problem.vocab = 33003 * ranks();
    problem.hidden = 2;
    expect_problem(problem);
  }
}

TEST_F(SanitizerTarget, CompactAccumulation) {
  Problem problem = small(DType::bfloat16);
  problem.accumulation = Accumulation::compact;
  expect_problem(problem);
}

TEST_F(SanitizerTarget, BiasPaddingAndFloat32Gradients) {
  for (const DType dtype : dtypes) {
    Problem problem = small(dtype);
    problem.bias = true;
    problem.vocab_padded = problem.vocab + 5;
    problem.grad_hidden = problem.grad_weight = GradDType::float32;
    expect_problem(problem);
  }
}

// Column sums by several lines of blocks, which are added up.
TEST_F(SanitizerTarget, BiasOverManyRows) {
  for (const DType dtype : dtypes) {
    Problem problem = small(dtype);
    problem.max_rows = 20;
    problem.bias = true;
    problem.chunking = {Chunking::Rule::rows, 20};
    expect_problem(problem);
  }
}

TEST_F(SanitizerTarget, StridedTensorsAndAccumulation) {
  Style style;
  style.pad = 3;
  style.value_stride = 2;
  style.target_stride = 3;
  style.target_dtype = DType::int32;
  style.accumulate = true;
  for (const DType dtype : dtypes)
    expect_reference(fill(small(dtype), ranks(), 86), Way::fused, style);
}

TEST_F(SanitizerTarget, RowIndex) {
  for (const DType dtype : dtypes) {
    Problem problem = small(dtype);
    problem.row_index = true;
    Sample sample = fill(problem, ranks(), 82);
    sample.data.row_index = std::vector<std::int64_t>{1, 2, 4};
    expect_sample(sample);
  }
}

TEST_F(SanitizerTarget, Denominator) {
  for (const bool soft : {false, true}) {
    Problem problem = small(DType::bfloat16);
    problem.soft_targets = soft;
    const Sample sample = fill(problem, ranks(), 87);
    const Tensors tensors = place(sample);
    const Loss loss = make(sample);
    DeviceArray total = DeviceArray::one(DType::float32, device());
    total.write(std::vector<double>{3});
    loss.add_denominator(tensors.inputs(), total.tensor(), {test_stream()});
    loss.wait(test_stream());
    const std::int64_t rows = soft ? sample.data.rows : reference(sample.data).counted_rows;
    EXPECT_EQ(total.read(), std::vector<double>{3 + static_cast<double>(rows)});
  }
}

// What timing algorithms launches beside products: values, checksums.
TEST_F(SanitizerTarget, TunedProducts) {
  Problem problem = small(DType::bfloat16);
  problem.gemm = GemmChoice::tuned;
  expect_problem(problem);
}

TEST_F(SanitizerTarget, KeptLogits) {
  for (const DType dtype : dtypes) {
    Problem problem = small(dtype);
    problem.entropy = true;
    problem.keep_logits = 4;
    expect_problem(problem, Way::two_step);
  }
}

TEST_F(SanitizerTarget, RowSharded) {
  for (const Way way : {Way::fused, Way::two_step}) {
    Problem problem = small(DType::bfloat16);
    problem.layout = Layout::row_sharded;
    expect_problem(problem, way);
  }
}

TEST_F(SanitizerTarget, NoRowsAndNoColumns) {
  Problem none = small(DType::bfloat16);
  expect_sample(fill_rows(none, 0, ranks(), 83));
  Problem narrow = small(DType::bfloat16);
  narrow.shard_widths.assign(static_cast<std::size_t>(ranks()), 0);
  narrow.shard_widths.back() = narrow.vocab;
  expect_problem(narrow);
}

TEST_F(SanitizerTarget, Embedding) {
  for (const DType dtype : dtypes) {
    const Sample sample = fill(small(dtype), ranks(), 84);
    Tensors tensors = place(sample);
    const VocabParallelEmbedding embedding(sample.problem, communicator(), device());
    const std::int64_t d = sample.problem.hidden;
    const DeviceArray rows(dtype, sample.data.rows, d, d, device());
    tensors.grad_weight.write(
        std::vector<double>(static_cast<std::size_t>(tensors.grad_weight.elements()), 0.25));
    embedding.forward(tensors.targets.tensor(), tensors.weight.tensor(), rows.tensor(), {},
                      test_stream());
    embedding.backward(tensors.targets.tensor(), rows.tensor(), tensors.grad_weight.tensor(), true,
                       {}, test_stream());
    embedding.wait(test_stream());
    std::vector<double> want;
    for (const std::int64_t id : sample.data.targets)
      for (std::int64_t k = 0; k < d; ++k)
        want.push_back(id < 0 ? 0 : sample.data.weight[static_cast<std::size_t>(id * d + k)]);
    EXPECT_EQ(rows.read(), want);
  }
}

}  // namespace
}  // namespace shardloss::test
