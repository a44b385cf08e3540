/// \file
/// Results against the reference: the worst element of each output, as a share of what is allowed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference.hpp"
#include "tolerance.hpp"

namespace shardloss {

/// The worst of one output. `share` 1 is just allowed; infinite where the exact answer is NaN,
/// infinite or exactly 0 and the result is not.
struct Comparison {
  std::string output;
  double share = 0;
  std::int64_t row = -1;     ///< where the worst element is; -1: the whole output, by its norm
  std::int64_t column = -1;  ///< -1: the output has one column, or a whole row is meant
  double got = 0;            ///< that element, or the norm of the row or output
  double want = 0;
  /// The reference is nearly all zeros: agreement says little.
  bool mistrusted = false;

  bool passed() const { return share <= 1; }
};

/// Per-row values or a scalar, infinite past `largest`. `absolute[i]`: an allowance beside the
/// relative one, or empty.
Comparison compare_values(const std::string& output, std::span<const double> got,
                          std::span<const double> want, double relative,
                          std::span<const double> absolute, double largest);

/// A gradient [rows, columns], over the whole and over every row; past the `range` of its
/// dtype it is infinite. `before`: what the buffer held when it was accumulated into,
/// else empty; `want` includes it.
Comparison compare_gradient(const std::string& output, std::span<const double> got,
                            std::span<const double> want, std::int64_t columns,
                            const ReferenceTerms& terms, const tolerance::Allowed& allowed,
                            const tolerance::Range& range, std::span<const double> before);

/// Integers, exactly.
Comparison compare_exact(const std::string& output, std::span<const std::int64_t> got,
                         std::span<const std::int64_t> want);

/// argmax: a column is right when its exact logit reaches the maximum to within rounding.
Comparison compare_argmax(const ReferenceProblem& problem, std::span<const std::int64_t> got,
                          std::span<const std::int64_t> want, double logit);

/// correct, given the argmax that came with it.
Comparison compare_correct(const ReferenceProblem& problem, std::span<const std::int64_t> got,
                           std::span<const std::int64_t> argmax);

/// Everything a call answered, whole, in double. Empty: was not asked for.
struct Answer {
  std::vector<double> loss, row_loss, lse, target_logprob, entropy;
  std::vector<double> cross_entropy, z_loss;  ///< one value each
  std::vector<std::int64_t> argmax, correct, counted_rows;
  std::vector<double> grad_hidden, grad_weight, grad_bias;
  /// What gradient buffers held before they were accumulated into.
  std::vector<double> before_hidden, before_weight, before_bias;
};

/// Compares all that was asked for.
std::vector<Comparison> compare_all(const ReferenceProblem& problem, const ReferenceResult& exact,
                                    const Answer& answer, const tolerance::Allowed& allowed);

}  // namespace shardloss
