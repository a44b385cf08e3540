// The bias gradient at sizes where the kernel of dU sums many rows a block, where its sums share
// the scratch with fewer lines than it would like, and where not one line fits.
#include <cmath>
#include <limits>

#include "gpu_test.hpp"

namespace shardloss::test {
namespace {

using Bias = GpuTest;

/// The worst error of the bias gradient, as a share of what is allowed. With hidden states of 0 the
/// logits are the bias, so it has a closed form: softmax(bias) - (how often v is a target) / rows.
double worst_share(std::int64_t rows, std::int64_t columns, DType dtype,
                   const Communicator& communicator) {
  const std::int64_t vocab = columns * ranks();
  Problem problem = plain_problem(rows, 2, vocab, dtype);
  problem.bias = true;
  problem.grad_weight = GradDType::float32;
  Sample sample = fill(problem, ranks(), 41);
  std::fill(sample.data.hidden.begin(), sample.data.hidden.end(), 0);
  sample.data.bias.assign(static_cast<std::size_t>(vocab), 0);
  std::vector<double> want(static_cast<std::size_t>(vocab));
  double sum = 0;
  for (std::size_t v = 0; v < want.size(); ++v) {
    sample.data.bias[v] = 0.25 * static_cast<double>(v % 5);  // exact in every dtype
    want[v] = std::exp(sample.data.bias[v]);
    sum += want[v];
  }
  std::vector<double> size = want;
  for (std::size_t v = 0; v < want.size(); ++v) size[v] = want[v] /= sum;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t y = (i + 1) * (vocab / (rows + 1)) + i % 3;
    sample.data.targets[static_cast<std::size_t>(i)] = y;
    want[static_cast<std::size_t>(y)] -= 1.0 / static_cast<double>(rows);
    size[static_cast<std::size_t>(y)] += 1.0 / static_cast<double>(rows);
  }
  // One rounding to the dtype of dU, where it is summed from there, and float32 sums of the rows.
  const double eps = std::numeric_limits<float>::epsilon();
  const double allowed =
      (dtype == DType::float32 ? 0 : std::ldexp(1.0, -8)) + eps * static_cast<double>(16 + rows);
  const Answer answer = answer_of(sample, communicator);
  double worst = 0;
  for (std::size_t v = 0; v < want.size(); ++v) {
    const double share = std::abs(answer.grad_bias[v] - want[v]) / (allowed * size[v]);
    worst = share <= worst ? worst : share;  // a NaN stays
  }
  return worst;
}

TEST_F(Bias, SumsOfAnyNumberOfRows) {
  for (const std::int64_t rows : {1, 7, 63, 64, 65, 129, 1000})
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
      EXPECT_LE(worst_share(rows, 1003, dtype, communicator()), 1) << rows << " " << name(dtype);
}

TEST_F(Bias, SumsThatHardlyFitTheirScratch) {
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{200, 2'900'003}, {130, 4'300'003}, {70, 8'500'003}})
    EXPECT_LE(worst_share(rows, columns, DType::bfloat16, communicator()), 1) << columns;
}

}  // namespace
}  // namespace shardloss::test
