/// \file
/// What the two halves of the reference share: a row on its way from logits to gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "reference.hpp"

namespace shardloss::reference_parts {

enum class RowKind { ordinary, ignored, invalid };

/// One row while it is worked on.
struct Row {
  std::int64_t index = 0;
  RowKind kind = RowKind::ordinary;
  std::vector<double> u, z, probability, weights;
  double max = 0, log_sum = 0;  // lse = max + log_sum
  double lse = 0, mean = 0;     // mean: E_p[z - max], small where z is large
};

/// The one value of all rows, or the row's own; `otherwise` where none is given.
inline double at(const std::vector<double>& values, std::int64_t i, double otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values[0] : values[static_cast<std::size_t>(i)];
}

inline double token_weight(const ReferenceProblem& p, std::int64_t i) {
  return p.token_weights.empty() ? 1.0 : p.token_weights[static_cast<std::size_t>(i)];
}

/// The norm of each row of the weight, [V].
std::vector<double> weight_norms(const ReferenceProblem& p);

/// For `rows` rows of a gradient, all 0.
ReferenceTerms sized_terms(std::size_t rows);

/// Sums of squares become norms.
void finish_terms(ReferenceTerms& terms);

/// Adds the row's share of every gradient, and what tolerances need to know of it. `factor`: of the
/// reduction.
void put_gradients(const ReferenceProblem& p, const Row& row, double factor,
                   const std::vector<double>& w_norms, ReferenceResult& out);

}  // namespace shardloss::reference_parts
