/// \file
/// What happens to a row of logits between the products: bias, statistics, gradient.
#pragma once

#include <cstdint>

#include "../call.hpp"
#include "../objective.hpp"
#include "../records.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::detail::cpu {

/// Whether a row gives no gradient: it is ignored or invalid, or nothing weighs it. Its gradient is
/// exactly 0 then, whatever its logits are.
template <class Real>
bool vanishes(const RowCoefficients<Real>& coefficients) {
  return coefficients.a == 0 && coefficients.g == 0 && coefficients.b == 0 && coefficients.c == 0;
}

/// The statistics of a row before any column.
template <class Real>
RowStatistics<Real> no_statistics(const Objective<Real>& objective);

/// The row steps of one call. Each treats columns [column, column + n) of one row, whose logits u
/// are in Real already.
template <class Real>
class RowSteps {
 public:
  RowSteps(const Problem& problem, const Objective<Real>& objective, const Call& call);

  bool has_bias() const { return bias_.given(); }
  /// u += bias
  void add_bias(std::int64_t column, std::int64_t n, Real* u) const;

  /// Takes more columns into the statistics of a row.
  void add_statistics(const Real* u, std::int64_t column, std::int64_t n,
                      const RowInput<Real>& input, RowStatistics<Real>& statistics) const;

  /// du of a row; du may be u.
  void gradient(const Real* u, std::int64_t column, std::int64_t n,
                const RowCoefficients<Real>& coefficients, Real* du) const;

 private:
  void add_block(const Real* u, std::int64_t column, std::int64_t n, std::int64_t target,
                 std::int64_t row, RowStatistics<Real>& statistics) const;
  void gradient_block(const Real* u, std::int64_t column, std::int64_t n,
                      const RowCoefficients<Real>& coefficients, Real* du) const;
  const Real* logits(const Real* u, std::int64_t n, Real* buffer) const;
  const Real* weights(std::int64_t row, std::int64_t column, std::int64_t n, Real* buffer) const;

  Objective<Real> objective_;
  ConstTensor bias_;
  ConstTensor soft_targets_;
  const Real* class_weights_ = nullptr;  // of this shard's columns
  bool entropy_;
  bool weighted_;  // label smoothing or soft targets: every column has a weight in the loss
  bool argmax_;
};

}  // namespace shardloss::detail::cpu
