#include "hashed_call.hpp"

#include "elements.hpp"
#include "gpu_test.hpp"

namespace shardloss::test {
namespace {

using launch::DeviceMemory;

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

DType dtype_of_gradient(GradDType wanted, DType own) {
  return wanted == GradDType::float32 ? DType::float32 : own;
}

DeviceMemory made_from(const HashedMatrix& m, DType dtype, std::int64_t first, std::int64_t rows) {
  DeviceMemory memory(bytes_of(rows * m.columns, dtype));
  fill_hashed(memory.data(), dtype, m, first, rows, test_cuda_stream());
  SHARDLOSS_TEST_CUDA_CALL(cudaStreamSynchronize(test_cuda_stream()));
  return memory;
}

DeviceMemory copy_of(const std::int64_t* values, std::size_t count) {
  DeviceMemory memory(count * sizeof(std::int64_t));
  if (count > 0) copy_to_device(memory.data(), values, count * sizeof(std::int64_t));
  return memory;
}

}  // namespace

HashedCall::HashedCall(const Communicator& communicator, const Problem& problem,
                       const HashedData& data)
    : problem_(problem),
      loss_(problem, communicator, device()),
      rows_(problem.max_rows),
      hidden_grad_dtype_(dtype_of_gradient(problem.grad_hidden, problem.dtype)),
      weight_grad_dtype_(dtype_of_gradient(problem.grad_weight, problem.dtype)) {
  if (problem.layout == Layout::row_sharded) {
    const std::int64_t total = problem.max_rows;
    first_row_ = total * rank() / ranks();
    for (int r = 0; r < ranks(); ++r)
      rows_per_rank_.push_back(total * (r + 1) / ranks() - total * r / ranks());
    rows_ = rows_per_rank_[static_cast<std::size_t>(rank())];
  }
  const Shard shard = loss_.plan().shard;
  const std::int64_t d = problem.hidden;
  hidden_ = made_from(data.hidden, problem.dtype, first_row_, rows_);
  weight_ = made_from(data.weight, problem.dtype, shard.first, shard.width);
  targets_ = copy_of(data.targets.data() + first_row_, static_cast<std::size_t>(rows_));
  row_index_ = copy_of(data.row_index.data(), data.row_index.size());
  mean_ = DeviceMemory(sizeof(float));
  row_loss_ = DeviceMemory(bytes_of(rows_, DType::float32));
  lse_ = DeviceMemory(bytes_of(rows_, DType::float32));
  grad_hidden_ = DeviceMemory(bytes_of(rows_ * d, hidden_grad_dtype_));
  grad_weight_ = DeviceMemory(bytes_of(shard.width * d, weight_grad_dtype_));

  const Device on = device();
  const auto dense = [&](void* memory, DType dtype, std::int64_t rows) {
    return Tensor(memory, dtype, {rows, d}, {d, 1}, on);
  };
  inputs_.hidden = dense(hidden_.data(), problem.dtype, rows_);
  inputs_.weight = dense(weight_.data(), problem.dtype, shard.width);
  inputs_.targets = vector(targets_.as<std::int64_t>(), rows_, on);
  inputs_.rows_per_rank = rows_per_rank_;
  if (problem.row_index) {
    inputs_.row_index =
        vector(row_index_.as<std::int64_t>(), static_cast<std::int64_t>(data.row_index.size()), on);
  }
  outputs_.loss = scalar(mean_.as<float>(), on);
  outputs_.row_loss = vector(row_loss_.as<float>(), rows_, on);
  outputs_.lse = vector(lse_.as<float>(), rows_, on);
  gradients_.hidden = dense(grad_hidden_.data(), hidden_grad_dtype_, rows_);
  gradients_.weight = dense(grad_weight_.data(), weight_grad_dtype_, shard.width);
}

// All ones: NaN in every floating dtype.
void HashedCall::poison() {
  for (const DeviceMemory* memory : {&mean_, &row_loss_, &lse_, &grad_hidden_, &grad_weight_})
    SHARDLOSS_TEST_CUDA_CALL(
        cudaMemsetAsync(memory->data(), 0xff, memory->bytes(), test_cuda_stream()));
}

void HashedCall::run(Way way) {
  poison();
  const Execution on{test_stream()};
  if (way == Way::fused) {
    loss_.forward_backward(inputs_, outputs_, {}, gradients_, on);
  } else {
    if (!saved_) saved_.emplace(loss_.make_saved());
    loss_.forward(inputs_, outputs_, &*saved_, on);
    loss_.backward(inputs_, *saved_, {}, gradients_, on);
  }
  loss_.wait(test_stream());
}

std::vector<double> HashedCall::read(const DeviceMemory& memory, DType dtype, std::int64_t first,
                                     std::int64_t count) const {
  std::vector<std::byte> bytes(bytes_of(count, dtype));
  SHARDLOSS_TEST_CUDA_CALL(cudaMemcpy(bytes.data(), memory.as<std::byte>() + bytes_of(first, dtype),
                                      bytes.size(), cudaMemcpyDeviceToHost));
  std::vector<double> values;
  for (std::size_t at = 0; at < bytes.size(); at += size_of(dtype))
    values.push_back(load(dtype, bytes.data() + at));
  return values;
}

double HashedCall::mean() const { return read(mean_, DType::float32, 0, 1).front(); }

std::vector<double> HashedCall::row_loss() const {
  return read(row_loss_, DType::float32, 0, rows_);
}

std::vector<double> HashedCall::lse() const { return read(lse_, DType::float32, 0, rows_); }

std::vector<double> HashedCall::grad_hidden(std::int64_t row, Columns columns) const {
  const std::int64_t first = (row - first_row_) * problem_.hidden + columns.first;
  return read(grad_hidden_, hidden_grad_dtype_, first, columns.count);
}

std::vector<double> HashedCall::grad_weight(std::int64_t v, Columns columns) const {
  const Shard shard = loss_.plan().shard;
  if (v < shard.first || v >= shard.first + shard.width) return {};
  const std::int64_t first = (v - shard.first) * problem_.hidden + columns.first;
  return read(grad_weight_, weight_grad_dtype_, first, columns.count);
}

std::vector<double> HashedCall::grad_hidden() const {
  return read(grad_hidden_, hidden_grad_dtype_, 0, rows_ * problem_.hidden);
}

std::vector<double> HashedCall::grad_weight() const {
  return read(grad_weight_, weight_grad_dtype_, 0, loss_.plan().shard.width * problem_.hidden);
}

std::vector<std::byte> HashedCall::bytes() const {
  std::vector<std::byte> all;
  for (const DeviceMemory* memory : {&mean_, &row_loss_, &lse_, &grad_hidden_, &grad_weight_}) {
    const std::size_t before = all.size();
    all.resize(before + memory->bytes());
    SHARDLOSS_TEST_CUDA_CALL(
        cudaMemcpy(all.data() + before, memory->data(), memory->bytes(), cudaMemcpyDeviceToHost));
  }
  return all;
}

}  // namespace shardloss::test
