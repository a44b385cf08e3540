// The row steps: formulas of one row, block by block. The loops over elements are vector_math's.
#include "row_steps.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "convert.hpp"
#include "vector_math.hpp"

namespace shardloss::detail::cpu {
namespace {

template <class Real>
constexpr std::array<Real, block_size> make_ones() {
  std::array<Real, block_size> ones{};
  for (Real& one : ones) one = 1;
  return ones;
}

template <class Real>
alignas(64) constexpr std::array<Real, block_size> ones = make_ones<Real>();

// Sums relative to the maximum so far become sums relative to a larger one.
template <class Real>
void raise_maximum(Real max, RowStatistics<Real>& s) {
  const Real shrink = std::exp(s.max - max);
  // Nothing summed yet: its maximum is -inf, and 0 x -inf must not enter.
  if (s.sum_exp != 0) {
    s.centered_sum = (s.centered_sum + s.sum_exp * std::max(s.max - max, lowest<Real>)) * shrink;
    s.sum_exp *= shrink;
  }
  s.max = max;
}

}  // namespace

template <class Real>
RowStatistics<Real> no_statistics(const Objective<Real>& objective) {
  RowStatistics<Real> statistics{};
  statistics.max = minus_infinity<Real>;
  statistics.argmax =
      objective.columns > 0 ? objective.first : std::numeric_limits<std::int64_t>::max();
  return statistics;
}

template <class Real>
RowSteps<Real>::RowSteps(const Problem& problem, const Objective<Real>& objective, const Call& call)
    : objective_(objective),
      bias_(call.in->bias),
      soft_targets_(call.in->soft_targets),
      entropy_(problem.entropy),
      weighted_(objective.smoothing != 0 || problem.soft_targets),
      argmax_(call.out->argmax.given() || call.out->correct.given()) {
  if (call.in->class_weights.given()) {
    class_weights_ = static_cast<const Real*>(call.in->class_weights.data()) + objective.first;
  }
}

template <class Real>
void RowSteps<Real>::add_bias(std::int64_t column, std::int64_t n, Real* u) const {
  alignas(64) std::array<Real, block_size> buffer;
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    const std::int64_t count = std::min(block_size, n - begin);
    to_real(bias_.dtype(), element(bias_.data(), bias_.dtype(), column + begin), count,
            buffer.data());
    add(buffer.data(), count, u + begin);
  }
}

template <class Real>
void RowSteps<Real>::add_statistics(const Real* u, std::int64_t column, std::int64_t n,
                                    const RowInput<Real>& input,
                                    RowStatistics<Real>& statistics) const {
  const std::int64_t target = objective_.column_of(input.target);
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    add_block(u + begin, column + begin, std::min(block_size, n - begin), target, input.row,
              statistics);
  }
}

template <class Real>
void RowSteps<Real>::add_block(const Real* u, std::int64_t column, std::int64_t n,
                               std::int64_t target, std::int64_t row,
                               RowStatistics<Real>& s) const {
  alignas(64) std::array<Real, block_size> buffer;
  const Real* z = logits(u, n, buffer.data());
  const Real max = maximum(z, n);
  if (max > s.max) {
    raise_maximum(max, s);
    if (argmax_) s.argmax = objective_.first + column + (std::find(z, z + n, max) - z);
  }
  // With nothing but -inf so far any shift will do: exp(-inf) is 0, and NaN still travels.
  const Real shift = s.max == minus_infinity<Real> ? Real(0) : s.max;
  s.sum_exp += sum_exp(z, n, shift);
  if (entropy_) s.centered_sum += sum_exp_centered(z, n, shift);
  if (weighted_) {
    alignas(64) std::array<Real, block_size> weight_buffer;
    const Real* w = weights(row, column, n, weight_buffer.data());
    s.weighted_sum += weighted_sum(w, z, n);
    if (soft_targets_.given()) s.target_mass += sum(w, n);
  }
  if (target >= column && target < column + n) s.target_logit = z[target - column];
}

template <class Real>
void RowSteps<Real>::gradient(const Real* u, std::int64_t column, std::int64_t n,
                              const RowCoefficients<Real>& k, Real* du) const {
  if (vanishes(k)) {
    std::fill_n(du, n, Real(0));
    return;
  }
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    gradient_block(u + begin, column + begin, std::min(block_size, n - begin), k, du + begin);
  }
}

template <class Real>
void RowSteps<Real>::gradient_block(const Real* u, std::int64_t column, std::int64_t n,
                                    const RowCoefficients<Real>& k, Real* du) const {
  alignas(64) std::array<Real, block_size> buffer;
  alignas(64) std::array<Real, block_size> slope;
  const Real* z = logits(u, n, buffer.data());
  const bool capped = objective_.cap != 0;
  if (capped) softcap_slope(u, n, objective_.scale, objective_.cap, slope.data());  // du may be u
  const bool owned = k.column >= column && k.column < column + n;
  const bool target = owned && z[k.column - column] != minus_infinity<Real>;
  if (k.g == 0 && k.c == 0) {
    softmax_gradient(z, n, k.max, k.log_sum, k.a, du);
  } else {
    alignas(64) std::array<Real, block_size> weight_buffer;
    const Real* w = k.c == 0 ? ones<Real>.data() : weights(k.row, column, n, weight_buffer.data());
    objective_gradient(z, w, n, k.max, k.log_sum, k.a, k.g, k.c, du);
  }
  if (target) du[k.column - column] += k.b;
  if (capped) multiply(du, slope.data(), n, du);
}

// z of a block: u itself, or computed into the buffer.
template <class Real>
const Real* RowSteps<Real>::logits(const Real* u, std::int64_t n, Real* buffer) const {
  if (objective_.cap != 0) {
    softcap(u, n, objective_.scale, objective_.cap, buffer);
  } else if (objective_.scale != 1) {
    scale(u, n, objective_.scale, buffer);
  } else {
    return u;
  }
  return buffer;
}

// What multiplies z_v in the loss: 1 or c_v (label smoothing), c_v q'_v (soft targets).
template <class Real>
const Real* RowSteps<Real>::weights(std::int64_t row, std::int64_t column, std::int64_t n,
                                    Real* buffer) const {
  if (!soft_targets_.given()) {
    return class_weights_ != nullptr ? class_weights_ + column : ones<Real>.data();
  }
  const std::int64_t index = row * soft_targets_.stride(0) + column;
  to_real(soft_targets_.dtype(), element(soft_targets_.data(), soft_targets_.dtype(), index), n,
          buffer);
  if (objective_.smoothing != 0) {
    const Real uniform = objective_.smoothing / static_cast<Real>(objective_.vocab);
    affine(buffer, n, 1 - objective_.smoothing, uniform, buffer);
  }
  if (class_weights_ != nullptr) multiply(buffer, class_weights_ + column, n, buffer);
  return buffer;
}

template RowStatistics<float> no_statistics(const Objective<float>&);
template RowStatistics<double> no_statistics(const Objective<double>&);
template class RowSteps<float>;
template class RowSteps<double>;

}  // namespace shardloss::detail::cpu
