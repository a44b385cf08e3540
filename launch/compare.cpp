#include "compare.hpp"

#include <cmath>
#include <limits>

namespace shardloss {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double at(std::span<const double> values, std::size_t i) { return values.empty() ? 0 : values[i]; }

bool both_finite(double a, double b) { return std::isfinite(a) && std::isfinite(b); }

/// From where on a value that may be off by so much may have become infinite.
double end_of(double largest, double relative) {
  return largest * (1 - std::min(0.125, tolerance::row_factor * relative));
}

/// NaN for NaN, and an infinity for the same one or for what lies past `end` on its side.
bool same_special(double got, double want, double end) {
  if (std::isnan(want)) return std::isnan(got);
  const bool past = std::isinf(got) && std::abs(want) >= end;
  return past ? std::signbit(got) == std::signbit(want) : got == want;
}

/// error / allowance, where no error is always right.
double share_of(double error, double allowance) {
  if (error == 0) return 0;
  const double share = error / allowance;
  return std::isnan(share) ? infinity : share;
}

void keep_worst(Comparison& worst, double share, std::int64_t row, std::int64_t column, double got,
                double want) {
  if (share <= worst.share && worst.row >= 0) return;
  if (share < worst.share) return;
  worst.share = share;
  worst.row = row;
  worst.column = column;
  worst.got = got;
  worst.want = want;
}

/// Sums of squares, for norms.
struct Squares {
  double error = 0, got = 0, want = 0;
  double own = 0;  ///< of `want` without what the buffer held before: errors are relative to it
  double allowance = 0;

  void add(const Squares& other) {
    error += other.error;
    got += other.got;
    want += other.want;
    own += other.own;
    allowance += other.allowance;
  }
};

/// A whole output by its norms, where that is worse than its worst element.
void keep_whole(Comparison& worst, const Squares& sums, double allowance) {
  const double share = share_of(std::sqrt(sums.error), allowance);
  if (share > worst.share)
    keep_worst(worst, share, -1, -1, std::sqrt(sums.got), std::sqrt(sums.want));
}

bool mostly_zero(std::span<const double> values) {
  std::size_t zeros = 0;
  for (const double value : values) zeros += value == 0 ? 1 : 0;
  return !values.empty() && zeros * 10 > values.size() * 9;
}

Comparison wrong_size(const std::string& output, std::size_t got, std::size_t want) {
  Comparison worst;
  worst.output = output + " (number of elements)";
  worst.share = infinity;
  worst.got = static_cast<double>(got);
  worst.want = static_cast<double>(want);
  return worst;
}

/// A row of a gradient: its sums, and where its largest error is.
struct RowErrors {
  Squares sums;
  std::size_t largest = 0;    ///< column
  std::int64_t special = -1;  ///< column of a NaN or infinity that should not be, or is missing
};

/// `end`: from there on an infinity is right.
RowErrors row_errors(std::span<const double> got, std::span<const double> want,
                     std::span<const double> before, double end) {
  RowErrors row;
  double largest = -1;
  for (std::size_t k = 0; k < want.size(); ++k) {
    if (!both_finite(got[k], want[k])) {
      if (!same_special(got[k], want[k], end)) row.special = static_cast<std::int64_t>(k);
      continue;
    }
    const double error = std::abs(got[k] - want[k]);
    const double own = want[k] - at(before, k);
    row.sums.add({error * error, got[k] * got[k], want[k] * want[k], own * own, 0});
    if (error > largest) largest = error, row.largest = k;
  }
  return row;
}

}  // namespace

Comparison compare_values(const std::string& output, std::span<const double> got,
                          std::span<const double> want, double relative,
                          std::span<const double> absolute, double largest) {
  if (got.size() != want.size()) return wrong_size(output, got.size(), want.size());
  Comparison worst;
  worst.output = output;
  const double end = end_of(largest, relative);
  Squares sums;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (!both_finite(got[i], want[i])) {
      const double share = same_special(got[i], want[i], end) ? 0 : infinity;
      keep_worst(worst, share, row, -1, got[i], want[i]);
      continue;
    }
    const double error = std::abs(got[i] - want[i]);
    const double allowance =
        tolerance::row_factor * (relative * std::abs(want[i]) + at(absolute, i));
    keep_worst(worst, share_of(error, allowance), row, -1, got[i], want[i]);
    const double squared = want[i] * want[i];
    sums.add({error * error, got[i] * got[i], squared, squared, at(absolute, i) * at(absolute, i)});
  }
  keep_whole(worst, sums, relative * std::sqrt(sums.own) + std::sqrt(sums.allowance));
  return worst;
}

Comparison compare_gradient(const std::string& output, std::span<const double> got,
                            std::span<const double> want, std::int64_t columns,
                            const ReferenceTerms& terms, const tolerance::Allowed& allowed,
                            const tolerance::Range& range, std::span<const double> before) {
  if (got.size() != want.size()) return wrong_size(output, got.size(), want.size());
  Comparison worst;
  worst.output = output;
  worst.mistrusted = mostly_zero(want);
  Squares sums;
  double excess = 0;  // by how much the floor of one row is above its share in that of the whole
  const auto width = static_cast<std::size_t>(columns);
  const double root = std::sqrt(static_cast<double>(columns));
  const double end = end_of(range.largest, allowed.gradient);
  const double accumulate = before.empty() ? 0 : allowed.accumulate;
  for (std::size_t i = 0; width > 0 && i * width < want.size(); ++i) {
    const RowErrors row =
        row_errors(got.subspan(i * width, width), want.subspan(i * width, width),
                   before.empty() ? before : before.subspan(i * width, width), end);
    const double formed = allowed.formed * terms.formed[i] +
                          allowed.perturbed * terms.perturbed[i] +
                          allowed.underflow * terms.largest * terms.factors[i] +
                          (terms.factors[i] == 0 ? 0 : range.smallest * root);
    const double floor = formed + allowed.rounded * terms.rounded[i];
    const double row_floor =
        formed +
        allowed.rounded * std::min(terms.summed[i], tolerance::storage_tail * terms.rounded[i]);
    const double allowance =
        std::max(tolerance::row_factor * allowed.gradient * std::sqrt(row.sums.own), row_floor) +
        accumulate * std::sqrt(row.sums.want);
    const std::size_t column =
        row.special >= 0 ? static_cast<std::size_t>(row.special) : row.largest;
    const double share =
        row.special >= 0 ? infinity : share_of(std::sqrt(row.sums.error), allowance);
    keep_worst(worst, share, static_cast<std::int64_t>(i), static_cast<std::int64_t>(column),
               got[i * width + column], want[i * width + column]);
    sums.add(row.sums);
    sums.allowance += floor * floor;
    excess = std::max(excess, row_floor - floor);
  }
  // Where few rows make up the whole it may be as unlucky as they are.
  const double floor = std::sqrt(sums.allowance) + excess;
  keep_whole(
      worst, sums,
      std::max(allowed.gradient * std::sqrt(sums.own), floor) + accumulate * std::sqrt(sums.want));
  return worst;
}

Comparison compare_exact(const std::string& output, std::span<const std::int64_t> got,
                         std::span<const std::int64_t> want) {
  if (got.size() != want.size()) return wrong_size(output, got.size(), want.size());
  Comparison worst;
  worst.output = output;
  for (std::size_t i = 0; i < want.size(); ++i)
    keep_worst(worst, got[i] == want[i] ? 0 : infinity, static_cast<std::int64_t>(i), -1,
               static_cast<double>(got[i]), static_cast<double>(want[i]));
  return worst;
}

Comparison compare_argmax(const ReferenceProblem& problem, std::span<const std::int64_t> got,
                          std::span<const std::int64_t> want, double logit) {
  if (got.size() != want.size()) return wrong_size("argmax", got.size(), want.size());
  Comparison worst;
  worst.output = "argmax";
  for (std::size_t i = 0; i < want.size(); ++i) {
    double share = 0;
    if (got[i] != want[i]) {
      share = infinity;
      if (want[i] >= 0 && got[i] >= 0 && got[i] < problem.vocab) {
        const auto z = reference_logits(problem, static_cast<std::int64_t>(i));
        // Both logits may be off, in opposite directions.
        share = share_of(z[static_cast<std::size_t>(want[i])] - z[static_cast<std::size_t>(got[i])],
                         2 * logit);
      }
    }
    keep_worst(worst, share, static_cast<std::int64_t>(i), -1, static_cast<double>(got[i]),
               static_cast<double>(want[i]));
  }
  return worst;
}

Comparison compare_correct(const ReferenceProblem& problem, std::span<const std::int64_t> got,
                           std::span<const std::int64_t> argmax) {
  std::vector<std::int64_t> want(argmax.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::int64_t y = problem.targets[i];
    want[i] = argmax[i] >= 0 && y == argmax[i] && y != problem.ignore_index ? 1 : 0;
  }
  return compare_exact("correct", got, want);
}

}  // namespace shardloss
