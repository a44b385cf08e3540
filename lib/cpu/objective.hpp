/// \file
/// What the statistics of all shards say about a row: its loss, and how its gradient is formed.
/// Scalars of a row are computed in double: they cost nothing, and large terms cancel in them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../records.hpp"
#include "scalars.hpp"

namespace shardloss::detail::cpu {

/// The rows of semantics.md's table: they differ in what they give and where they count.
enum class RowKind : std::uint8_t { ordinary, ignored, invalid };

template <class Real>
RowKind kind_of(const Objective<Real>& objective, bool soft_targets, std::int64_t target) {
  if (soft_targets) return RowKind::ordinary;
  if (target == objective.ignore_index) return RowKind::ignored;
  return target >= 0 && target < objective.vocab ? RowKind::ordinary : RowKind::invalid;
}

/// A row's statistics over the whole vocabulary.
template <class Real>
struct CombinedRow {
  SavedRow<Real> saved;
  Real target_logit;
  Real weighted_sum;
  std::int64_t argmax;

  double lse() const { return static_cast<double>(saved.max) + saved.log_sum; }
  /// lse - z_y, without the cancellation of the two.
  double target_nll() const {
    return saved.log_sum + (static_cast<double>(saved.max) - target_logit);
  }
};

/// Combines position `row` of the P segments of an exchange, in rank order: every rank gets the
/// same bits.
template <class Real>
CombinedRow<Real> combine_row(const std::byte* exchange, std::int64_t segment_bytes, int ranks,
                              std::int64_t row);

/// The objective with what one call adds to it.
template <class Real>
struct CallObjective {
  Objective<Real> objective;
  bool soft_targets;
  const Real* class_weights;  ///< [V], or null
  double class_sum;           ///< Scalars::class_sum
  double class_most;
  double reduction;  ///< what a reduced loss is multiplied by: 1, or 1 / denominator (0: 0)

  double class_weight(std::int64_t id) const {
    return class_weights == nullptr ? 1.0 : static_cast<double>(class_weights[id]);
  }
};

template <class Real>
RowLoss loss_of(const CallObjective<Real>& call, const RowInput<Real>& input,
                const CombinedRow<Real>& row);

/// The coefficients of a row before the chunk's power of two; all 0 unless it is ordinary.
template <class Real>
RowCoefficients<Real> coefficients_of(const CallObjective<Real>& call, const RowInput<Real>& input,
                                      const SavedRow<Real>& row);

/// Divides the coefficients of a chunk by a power of two which brings the largest row magnitude
/// near 2^`exponent`, and returns it. The same on every rank: all know all rows of a chunk.
template <class Real>
double normalise(const CallObjective<Real>& call, int exponent, RowCoefficients<Real>* rows,
                 std::int64_t count);

}  // namespace shardloss::detail::cpu
