// The embedding with more than 2^31 elements (case T28). Look-ups are exact, and so are sums of a
// few small multiples of 2^-7.
#include "device_memory.hpp"
#include "elements.hpp"
#include "hashed.hpp"
#include "large.hpp"
#include "shardloss/embedding.hpp"

namespace shardloss::test {
namespace {

std::vector<double> hashed_row(const HashedMatrix& m, std::int64_t row) {
  std::vector<double> values;
  for (std::int64_t k = 0; k < m.columns; ++k) values.push_back(element_of(m, row, k));
  return values;
}

std::vector<double> sum_of_rows(const HashedMatrix& m, const std::vector<std::int64_t>& rows) {
  std::vector<double> sum(static_cast<std::size_t>(m.columns), 0.0);
  for (const std::int64_t row : rows)
    for (std::int64_t k = 0; k < m.columns; ++k)
      sum[static_cast<std::size_t>(k)] += element_of(m, row, k);
  return sum;
}

/// The tensors of an embedding of ids over a hashed weight.
class HashedLookup {
 public:
  HashedLookup(const Communicator& communicator, const Problem& problem,
               const std::vector<std::int64_t>& ids)
      : problem_(problem),
        embedding_(problem, communicator, device()),
        shard_(make_shards(problem, ranks())[static_cast<std::size_t>(rank())]),
        rows_(static_cast<std::int64_t>(ids.size())),
        ids_(ids.size() * sizeof(std::int64_t)),
        weight_(bytes(shard_.width, problem.dtype)),
        output_(bytes(rows_, problem.dtype)),
        grad_output_(bytes(rows_, problem.dtype)),
        grad_weight_(bytes(shard_.width, gradient_dtype())) {
    copy_to_device(ids_.data(), ids.data(), ids_.bytes());
    fill_hashed(weight_.data(), problem.dtype, weight, shard_.first, shard_.width,
                test_cuda_stream());
    fill_hashed(grad_output_.data(), problem.dtype, grad_output, 0, rows_, test_cuda_stream());
    for (const launch::DeviceMemory* memory : {&output_, &grad_weight_})
      SHARDLOSS_TEST_CUDA_CALL(
          cudaMemsetAsync(memory->data(), 0xff, memory->bytes(), test_cuda_stream()));
  }

  void forward() const {
    embedding_.forward(id_tensor(), matrix(weight_, shard_.width, problem_.dtype),
                       matrix(output_, rows_, problem_.dtype), {}, test_stream());
    embedding_.wait(test_stream());
  }
  void backward() const {
    embedding_.backward(id_tensor(), matrix(grad_output_, rows_, problem_.dtype),
                        matrix(grad_weight_, shard_.width, gradient_dtype()), false, {},
                        test_stream());
    embedding_.wait(test_stream());
  }

  std::vector<double> output_row(std::int64_t row) const {
    return read(output_, problem_.dtype, row);
  }
  void expect_weight_gradient(std::int64_t id, const std::vector<std::int64_t>& rows) const {
    if (id < shard_.first || id >= shard_.first + shard_.width) return;
    EXPECT_EQ(read(grad_weight_, gradient_dtype(), id - shard_.first),
              sum_of_rows(grad_output, rows))
        << "dW of entry " << id;
  }

  const HashedMatrix weight{.seed = 4, .columns = wide, .scale = 1, .varied = true};
  const HashedMatrix grad_output{.seed = 5, .columns = wide, .scale = 1, .varied = false};

 private:
  static std::size_t bytes(std::int64_t rows, DType dtype) {
    return static_cast<std::size_t>(rows * wide) * size_of(dtype);
  }
  DType gradient_dtype() const {
    return problem_.grad_weight == GradDType::float32 ? DType::float32 : problem_.dtype;
  }
  Tensor id_tensor() const { return vector(ids_.as<std::int64_t>(), rows_, device()); }
  static Tensor matrix(const launch::DeviceMemory& memory, std::int64_t rows, DType dtype) {
    return {memory.data(), dtype, {rows, wide}, {wide, 1}, device()};
  }
  static std::vector<double> read(const launch::DeviceMemory& memory, DType dtype,
                                  std::int64_t row) {
    std::vector<std::byte> raw(bytes(1, dtype));
    SHARDLOSS_TEST_CUDA_CALL(cudaMemcpy(raw.data(), memory.as<std::byte>() + bytes(row, dtype),
                                        raw.size(), cudaMemcpyDeviceToHost));
    std::vector<double> values;
    for (std::size_t at = 0; at < raw.size(); at += size_of(dtype))
      values.push_back(load(dtype, raw.data() + at));
    return values;
  }

  Problem problem_;
  VocabParallelEmbedding embedding_;
  Shard shard_;
  std::int64_t rows_;
  launch::DeviceMemory ids_, weight_, output_, grad_output_, grad_weight_;
};

TEST_F(Large, T28_EmbeddingOfAWeightPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(12);
  const std::int64_t last = large_weight().vocab - 1;
  const std::int64_t border = past_int32 / wide + 1;
  const HashedLookup lookup(communicator(), large_weight(),
                            {0, last, border, -100, last, border - 1});
  lookup.forward();
  EXPECT_EQ(lookup.output_row(0), hashed_row(lookup.weight, 0));
  EXPECT_EQ(lookup.output_row(1), hashed_row(lookup.weight, last));
  EXPECT_EQ(lookup.output_row(2), hashed_row(lookup.weight, border));
  EXPECT_EQ(lookup.output_row(3), std::vector<double>(static_cast<std::size_t>(wide), 0.0));
  EXPECT_EQ(lookup.output_row(5), hashed_row(lookup.weight, border - 1));
  lookup.backward();
  lookup.expect_weight_gradient(0, {0});
  lookup.expect_weight_gradient(1, {});
  lookup.expect_weight_gradient(border - 1, {5});
  lookup.expect_weight_gradient(border, {2});
  lookup.expect_weight_gradient(last, {1, 4});
}

TEST_F(Large, T28_EmbeddingOfRowsPastTwoToThe31) {
  SHARDLOSS_NEEDS_GPU_MEMORY(18);
  Problem problem = large_hidden();
  problem.vocab = std::int64_t{512} * ranks();
  const std::int64_t rows = problem.max_rows;
  const std::int64_t last = problem.vocab - 1;
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows; ++i) ids.push_back(i * 5 % last);
  ids.back() = last;
  std::vector<std::int64_t> rows_of_id_5;
  for (std::int64_t i = 0; i < rows; ++i)
    if (ids[static_cast<std::size_t>(i)] == 5) rows_of_id_5.push_back(i);
  for (const std::int64_t chunk : {rows, std::int64_t{16384}}) {
    problem.chunking.value = chunk;
    const HashedLookup lookup(communicator(), problem, ids);
    lookup.forward();
    for (const std::int64_t row : {std::int64_t{0}, rows - 2, rows - 1})
      EXPECT_EQ(lookup.output_row(row),
                hashed_row(lookup.weight, ids[static_cast<std::size_t>(row)]))
          << "row " << row;
    lookup.backward();
    lookup.expect_weight_gradient(last, {rows - 1});
    lookup.expect_weight_gradient(5, rows_of_id_5);
  }
}

}  // namespace
}  // namespace shardloss::test
