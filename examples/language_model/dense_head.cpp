// Whole logits and their gradient, [targets, V], as a textbook has them.
#include <algorithm>
#include <cmath>

#include "head.hpp"
#include "products.hpp"

namespace language_model {
namespace {

class DenseHead : public Head {
 public:
  explicit DenseHead(const HeadSizes& sizes) : Head(sizes, {0, sizes.vocab}), sizes_(sizes) {}

  void embed(const GroupBatch& group, std::vector<float>& embedded) override {
    embedded.resize(group.batch.ids.size() * static_cast<std::size_t>(sizes_.width));
    auto to = embedded.begin();
    for (const std::int32_t id : group.batch.ids)
      to = std::copy_n(weight_.value.begin() + id * sizes_.width, sizes_.width, to);
  }

  void embed_backward(const GroupBatch& group, const std::vector<float>& grad) override {
    auto from = grad.begin();
    for (const std::int32_t id : group.batch.ids) {
      const auto to = weight_.gradient.begin() + id * sizes_.width;
      std::transform(from, from + sizes_.width, to, to, std::plus<>());
      from += sizes_.width;
    }
  }

  double train(const GroupBatch& group, const std::vector<float>& hidden, double words,
               std::vector<float>& grad_hidden) override {
    const auto rows = static_cast<std::int64_t>(group.batch.targets.size());
    make_logits(hidden, rows);
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      float* row = logits_.data() + i * sizes_.vocab;
      const auto target = group.batch.targets[static_cast<std::size_t>(i)];
      const double lse = log_sum_exp(row);
      sum += lse - row[target];
      for (std::int64_t v = 0; v < sizes_.vocab; ++v)
        row[v] = std::exp(row[v] - static_cast<float>(lse)) / static_cast<float>(words);
      row[target] -= static_cast<float>(1 / words);
      for (std::int64_t v = 0; v < sizes_.vocab; ++v)
        bias_.gradient[static_cast<std::size_t>(v)] += row[v];
    }
    grad_hidden.resize(hidden.size());
    multiply(Form::plain, Form::plain, rows, sizes_.width, sizes_.vocab, logits_.data(),
             weight_.value.data(), 0.0F, grad_hidden.data());
    multiply(Form::transposed, Form::plain, sizes_.vocab, sizes_.width, rows, logits_.data(),
             hidden.data(), 1.0F, weight_.gradient.data());
    return sum / words;
  }

  double evaluate(const GroupBatch& group, const std::vector<float>& hidden) override {
    const auto rows = static_cast<std::int64_t>(group.batch.targets.size());
    make_logits(hidden, rows);
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* row = logits_.data() + i * sizes_.vocab;
      sum += log_sum_exp(row) - row[group.batch.targets[static_cast<std::size_t>(i)]];
    }
    return sum;
  }

  Footprint footprint() const override {
    return {static_cast<std::size_t>(sizes_.max_targets * sizes_.vocab) * sizeof(float),
            sizes_.max_targets};
  }

 private:
  void make_logits(const std::vector<float>& hidden, std::int64_t rows) {
    logits_.resize(static_cast<std::size_t>(rows * sizes_.vocab));
    for (std::int64_t i = 0; i < rows; ++i)
      std::copy(bias_.value.begin(), bias_.value.end(), logits_.begin() + i * sizes_.vocab);
    multiply(Form::plain, Form::transposed, rows, sizes_.vocab, sizes_.width, hidden.data(),
             weight_.value.data(), 1.0F, logits_.data());
  }

  double log_sum_exp(const float* row) const {
    const float max = *std::max_element(row, row + sizes_.vocab);
    double sum = 0;
    for (std::int64_t v = 0; v < sizes_.vocab; ++v) sum += std::exp(row[v] - max);
    return max + std::log(sum);
  }

  HeadSizes sizes_;
  std::vector<float> logits_;
};

}  // namespace

std::unique_ptr<Head> make_dense_head(const HeadSizes& sizes) {
  return std::make_unique<DenseHead>(sizes);
}

}  // namespace language_model
