/// \file
/// A few rows of a hashed problem in fp64 on the host, straight from the formulas.
#pragma once

#include <cstdint>
#include <vector>

#include "hashed.hpp"

namespace shardloss::test {

/// Columns [first, first + count) of a matrix.
struct Columns {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The mean cross-entropy of rows of x against the whole weight, where all other rows are ignored.
class ExactRows {
 public:
  static constexpr std::int64_t ignored = -100;

  /// targets[i] belongs to rows[i], and may be `ignored`.
  ExactRows(const HashedMatrix& hidden, const HashedMatrix& weight, std::int64_t vocab,
            std::vector<std::int64_t> rows, std::vector<std::int64_t> targets);

  const std::vector<std::int64_t>& rows() const { return rows_; }
  std::int64_t target(std::size_t i) const { return targets_[i]; }
  /// Rows that are not ignored.
  std::int64_t counted() const { return counted_; }
  double lse(std::size_t i) const { return lse_[i]; }
  double target_logit(std::size_t i) const;
  double loss(std::size_t i) const;
  double mean() const;
  /// The largest |z|.
  double magnitude() const;

  /// Of the mean: part of dX's row rows()[i], and of dW's row v.
  std::vector<double> grad_hidden(std::size_t i, Columns columns) const;
  std::vector<double> grad_weight(std::int64_t v, Columns columns) const;

 private:
  double logit(std::size_t i, std::int64_t v) const {
    return logits_[static_cast<std::size_t>(v) * rows_.size() + i];
  }
  double dlogit(std::size_t i, std::int64_t v) const;

  HashedMatrix hidden_;
  HashedMatrix weight_;
  std::int64_t vocab_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> targets_;
  std::int64_t counted_ = 0;
  std::vector<double> logits_;  // [vocab, rows]
  std::vector<double> lse_;
};

}  // namespace shardloss::test
