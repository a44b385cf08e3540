/// \file
/// How far a result may be from the exact one: unit roundoff times a named coefficient, each with
/// its reason. Errors are measured as norm of error over norm of the fp64 reference on the rounded
/// inputs, over a whole output and, for gradients, over each row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shardloss/problem.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::tolerance {

/// Unit roundoff: the largest relative error of rounding to the nearest.
constexpr double eps(DType dtype) {
  switch (dtype) {
    case DType::float64: return 0x1p-53;
    case DType::float32: return 0x1p-24;
    case DType::float16: return 0x1p-11;
    case DType::bfloat16: return 0x1p-8;
    default: return 0;
  }
}

/// Statistics and small sums are float, or double for float64 problems.
constexpr DType real_of(DType dtype) {
  return dtype == DType::float64 ? DType::float64 : DType::float32;
}

/// Loss, lse and their kin: 3e-5 in fp32, 3e-3 in bf16, 1e-3 in fp16. In full precision a logit
/// sums D products and lse V exponentials, each rounding once: some hundreds of eps. In 16 bit the
/// one rounding of the logits chunk counts, averaged over the columns.
constexpr double value_coefficient(DType dtype) {
  if (dtype == DType::bfloat16) return 0.75;
  if (dtype == DType::float16) return 2;
  return 500;
}

/// Gradients: 3e-5 in fp32, 1e-2 in bf16, 4e-3 in fp16. In 16 bit the chunk is rounded as logits,
/// again as logit gradients, and the result once more; fp16 also loses small entries.
constexpr double gradient_coefficient(DType dtype) {
  if (dtype == DType::bfloat16) return 2.5;
  if (dtype == DType::float16) return 8;
  return 500;
}

/// A row of a gradient, or one entry of a per-row output, against its own norm: it averages over
/// fewer roundings than the whole.
inline constexpr double row_factor = 4;

/// A chunk in a short dtype rounds u: each exponential is off by up to half an ulp of |z|.
inline constexpr double logit_growth = 0.5;

/// Values that cancel (lse - z_y of a row that the model is sure of; p_y - 1) are formed in real
/// precision from terms that carry the rounding of a product of D terms.
inline constexpr double formation_coefficient = 16;

/// Logit gradients are rounded to the problem's dtype before their product (on GPUs under
/// `accurate` too); where the product's terms cancel, that rounding does not. Each is off by at
/// most eps of itself, independently of the others: over a whole output their squares add up.
inline constexpr double storage_coefficient = 1;

/// The worst row of many. Few terms may all be rounded the same way: eps times their sum bounds a
/// row always. Many will not: one rounding deviates by at most eps / sqrt(3), so that three roots
/// of the sum of squares are five deviations of the sum, one row in millions.
inline constexpr double storage_tail = 3;

/// A column's exponential and the sum over its row may be off in opposite directions; where what
/// they make cancels against other terms or rows, that remains.
inline constexpr double perturbation_coefficient = 2;

/// fp16 ends at 2^-24: a chunk's logit gradients lie within a power of two chosen so that the
/// largest is near 2^10, and what is 2^-30 of it is surely still there. Where fp32 is the range,
/// probabilities below its smallest normal number are 0.
constexpr double underflow_coefficient(DType dtype) {
  if (dtype == DType::float64) return 0x1p-1022;
  return dtype == DType::float16 ? 0x1p-30 : 0x1p-126;
}

/// Half the smallest fp16 number: how far a gradient written in fp16 may be off at the least.
inline constexpr double smallest_coefficient = 0x1p-25;

/// Adding to what a gradient buffer held rounds in its dtype: once, or with every chunk where the
/// chunks are added straight into it.
inline constexpr double accumulation_coefficient = 2;

/// The reference is fp64: where the problem is too, both round, and as often.
constexpr double rounding_sides(DType dtype) { return dtype == DType::float64 ? 2 : 1; }

/// Past it an element rounds to infinity.
constexpr double largest(DType dtype) {
  switch (dtype) {
    case DType::float64: return std::numeric_limits<double>::max();
    case DType::float16: return 65504;
    default: return std::numeric_limits<float>::max();  // bfloat16 ends where float32 does, nearly
  }
}

/// What the dtype that a gradient is written in can hold.
struct Range {
  double smallest = 0;  ///< absolute: how far each element may be off at the least
  double largest = std::numeric_limits<double>::max();
};

/// What is allowed to one problem.
struct Allowed {
  double value = 0;       ///< relative, over a whole per-row output or a scalar
  double gradient = 0;    ///< relative, over a whole gradient
  double formed = 0;      ///< of ReferenceTerms::formed, or of what a row loss is made of
  double rounded = 0;     ///< of ReferenceTerms::rounded
  double logit = 0;       ///< absolute: how far a logit, and with it lse, may be off
  double accumulate = 0;  ///< of the value in a gradient buffer that was added to
  double perturbed = 0;   ///< of ReferenceTerms::perturbed
  double underflow = 0;   ///< of ReferenceTerms::largest times its factors
  double largest = std::numeric_limits<double>::max();  ///< that losses can be
  Range hidden;                                         ///< of the hidden gradient
  Range weight;                                         ///< of the weight and bias gradients
};

/// `logits`: dtype of the chunk (Plan::logits_dtype). `magnitude`: ReferenceResult's
/// logit_magnitude. `sums`: how often a compact gradient is rounded while it adds up: chunks for
/// the weight's, ranks for the hidden one's; whichever is larger.
inline Allowed allowed(const Problem& problem, DType logits, double magnitude, double sums) {
  const double sides = rounding_sides(problem.dtype);
  const double e = sides * eps(problem.dtype), real = sides * eps(real_of(problem.dtype));
  const double logit = sides * eps(logits);
  const double growth = logit_growth * logit * magnitude;
  const bool compact = problem.accumulation == Accumulation::compact;
  // Roundings of partial sums in the short dtype are independent: their squares add up.
  const double spread = compact ? 1 + std::sqrt(std::max(sums, 1.0)) : 1;
  Allowed out;
  out.value = value_coefficient(problem.dtype) * e + growth;
  out.gradient = gradient_coefficient(problem.dtype) * e * spread + growth;
  out.formed = formation_coefficient * real;
  out.rounded = storage_coefficient * e * spread;
  out.logit = (logit + formation_coefficient * real) * magnitude;
  out.perturbed = perturbation_coefficient * out.logit;
  const DType stored =
      problem.grad_weight == GradDType::float32 ? real_of(problem.dtype) : problem.dtype;
  const bool straight = compact || size_of(stored) > 2;
  out.accumulate = accumulation_coefficient * sides * eps(stored) *
                   (straight ? std::sqrt(std::max(sums, 1.0)) : 1);
  out.underflow = underflow_coefficient(problem.dtype);
  const auto range = [&](GradDType grad) {
    const bool wide = grad == GradDType::float32 && !compact;  // compact: partial sums are short
    Range of;
    of.largest = largest(wide ? real_of(problem.dtype) : problem.dtype);
    if (problem.dtype == DType::float16 && !wide) of.smallest = smallest_coefficient * sums;
    return of;
  };
  out.largest = largest(real_of(problem.dtype));
  out.hidden = range(problem.grad_hidden);
  out.weight = range(problem.grad_weight);
  return out;
}

}  // namespace shardloss::tolerance
