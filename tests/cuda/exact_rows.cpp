#include "exact_rows.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>

namespace shardloss::test {

ExactRows::ExactRows(const HashedMatrix& hidden, const HashedMatrix& weight, std::int64_t vocab,
                     std::vector<std::int64_t> rows, std::vector<std::int64_t> targets)
    : hidden_(hidden),
      weight_(weight),
      vocab_(vocab),
      rows_(std::move(rows)),
      targets_(std::move(targets)),
      logits_(static_cast<std::size_t>(vocab) * rows_.size(), 0.0) {
  const std::size_t count = rows_.size();
  const std::int64_t width = hidden.columns;
  std::vector<double> x(static_cast<std::size_t>(width) * count);  // [columns, rows]
  for (std::size_t i = 0; i < count; ++i)
    for (std::int64_t k = 0; k < width; ++k)
      x[static_cast<std::size_t>(k) * count + i] = element_of(hidden, rows_[i], k);

      // More than the threads of a rank's share: most of a test's time on the host is here.
#pragma omp parallel for num_threads(omp_get_num_procs())
  for (std::int64_t v = 0; v < vocab; ++v) {
    const float scale = row_scale(weight, v);
    double* const z = logits_.data() + static_cast<std::size_t>(v) * count;
    for (std::int64_t k = 0; k < width; ++k) {
      const double w = element_of(weight, v, k, scale);
      const double* const column = x.data() + static_cast<std::size_t>(k) * count;
      for (std::size_t i = 0; i < count; ++i) z[i] += column[i] * w;
    }
  }

  for (std::size_t i = 0; i < count; ++i) {
    double max = logit(i, 0);
    for (std::int64_t v = 0; v < vocab; ++v) max = std::max(max, logit(i, v));
    double sum = 0;
    for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(logit(i, v) - max);
    lse_.push_back(max + std::log(sum));
    if (targets_[i] != ignored) ++counted_;
  }
}

double ExactRows::target_logit(std::size_t i) const {
  return targets_[i] == ignored ? 0 : logit(i, targets_[i]);
}

double ExactRows::loss(std::size_t i) const {
  return targets_[i] == ignored ? 0 : lse_[i] - target_logit(i);
}

double ExactRows::mean() const {
  double sum = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) sum += loss(i);
  return sum / static_cast<double>(counted_);
}

double ExactRows::magnitude() const {
  double largest = 0;
  for (const double z : logits_) largest = std::max(largest, std::abs(z));
  return largest;
}

double ExactRows::dlogit(std::size_t i, std::int64_t v) const {
  if (targets_[i] == ignored) return 0;
  const double p = std::exp(logit(i, v) - lse_[i]);
  return (p - (v == targets_[i] ? 1 : 0)) / static_cast<double>(counted_);
}

std::vector<double> ExactRows::grad_hidden(std::size_t i, Columns columns) const {
  std::vector<double> sums(static_cast<std::size_t>(columns.count), 0.0);
  for (std::int64_t v = 0; v < vocab_; ++v) {
    const double du = dlogit(i, v);
    const float scale = row_scale(weight_, v);
    for (std::int64_t k = 0; k < columns.count; ++k)
      sums[static_cast<std::size_t>(k)] += du * element_of(weight_, v, columns.first + k, scale);
  }
  return sums;
}

std::vector<double> ExactRows::grad_weight(std::int64_t v, Columns columns) const {
  std::vector<double> sums(static_cast<std::size_t>(columns.count), 0.0);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const double du = dlogit(i, v);
    const float scale = row_scale(hidden_, rows_[i]);
    for (std::int64_t k = 0; k < columns.count; ++k)
      sums[static_cast<std::size_t>(k)] +=
          du * element_of(hidden_, rows_[i], columns.first + k, scale);
  }
  return sums;
}

}  // namespace shardloss::test
