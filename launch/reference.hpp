/// \file
/// The independent reference: one process, whole vocabulary, double precision, loops. It follows
/// the definitions of the objective line by line and shares no code with the library, so that both
/// being wrong in the same way takes two mistakes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shardloss/problem.hpp"

namespace shardloss {

/// A whole problem with its data. Matrices are dense and row-major; an empty vector is not given.
struct ReferenceProblem {
  std::int64_t rows = 0;          ///< N
  std::int64_t hidden_size = 0;   ///< D
  std::int64_t vocab = 0;         ///< V, the true vocabulary
  std::int64_t vocab_padded = 0;  ///< rows of weight, bias and soft targets' columns; 0: vocab

  std::vector<double> hidden;         ///< [N, D]
  std::vector<double> weight;         ///< [vocab_padded, D]; rows past V are never read
  std::vector<double> bias;           ///< [vocab_padded]
  std::vector<std::int64_t> targets;  ///< [N], or empty with soft targets
  std::vector<double> soft_targets;   ///< [N, vocab_padded]
  std::vector<double> token_weights;  ///< [N]; not given: 1
  std::vector<double> class_weights;  ///< [V]; not given: 1
  std::optional<double> normalizer;   ///< divides in place of the denominator
  std::optional<std::vector<std::int64_t>> row_index;  ///< only these rows are computed

  // Upstream gradients: [N], or one value for all rows. Not given: 1 for the loss, 0 for the rest.
  std::vector<double> upstream_loss;
  std::vector<double> upstream_lse;
  std::vector<double> upstream_logprob;
  std::vector<double> upstream_entropy;

  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;
  double logit_scale = 1.0;
  double softcap = 0.0;
  double label_smoothing = 0.0;
  SmoothingForm label_smoothing_form = SmoothingForm::pytorch;
  double z_loss = 0.0;

  /// false: no grad_weight and grad_bias; for a few rows of a large vocabulary.
  bool weight_gradients = true;
};

/// What each row of a gradient is added up from: products of a logit gradient with a factor (a row
/// of the weight for the hidden gradient, of the hidden states for the weight's, 1 for the bias's).
/// Where they cancel, rounding is relative to them and not to the sum; tolerance.hpp says how much
/// that allows.
struct ReferenceTerms {
  /// Sum of the absolute values that a logit gradient is formed from, times the factor's norm.
  std::vector<double> formed;
  /// Root of the sum of squares of logit gradient times factor's norm.
  std::vector<double> rounded;
  /// Sum of their absolute values.
  std::vector<double> summed;
  /// The same of what a logit gradient changes by per relative change of the exponentials.
  std::vector<double> perturbed;
  /// Root of the sum of squares of the factors' norms.
  std::vector<double> factors;
  /// The largest value that any logit gradient is formed from.
  double largest = 0;
};

/// What the library should answer, to within rounding.
struct ReferenceResult {
  std::vector<double> loss;      ///< one value, or [N] with Reduction::none
  std::vector<double> row_loss;  ///< [N], likewise down to `correct`
  std::vector<double> lse;
  std::vector<double> target_logprob;  ///< zeros with soft targets
  std::vector<double> entropy;
  std::vector<std::int64_t> argmax;
  std::vector<std::int64_t> correct;
  std::int64_t counted_rows = 0;
  double denominator = 1.0;    ///< what divides the sum of the row losses (1 where nothing does)
  double cross_entropy = 0.0;  ///< the parts of the reduced loss (of the sum, with Reduction::none)
  double z_loss = 0.0;

  std::vector<double> grad_hidden;  ///< [N, D]
  std::vector<double> grad_weight;  ///< [vocab_padded, D]
  std::vector<double> grad_bias;    ///< [vocab_padded]

  // What tolerances depend on.
  double logit_magnitude = 0.0;   ///< largest finite |s u| max(1, 2 / cap) over all rows
  std::vector<double> row_terms;  ///< [N] sum of the absolute values that a row loss is made of
  ReferenceTerms hidden_terms;    ///< [N]
  ReferenceTerms weight_terms;    ///< [vocab_padded]
  ReferenceTerms bias_terms;      ///< [vocab_padded]
};

/// Computes everything. Rows, sizes and options are taken as they are: checking them is the
/// library's affair.
ReferenceResult reference(const ReferenceProblem& problem);

/// The logits z of one row after scale and cap, [V].
std::vector<double> reference_logits(const ReferenceProblem& problem, std::int64_t row);

}  // namespace shardloss
