// The reference's rows and outputs; gradients are in reference_gradients.cpp.
#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference_parts.hpp"

namespace shardloss {
namespace {

using reference_parts::at;
using reference_parts::finish_terms;
using reference_parts::put_gradients;
using reference_parts::Row;
using reference_parts::RowKind;
using reference_parts::sized_terms;
using reference_parts::token_weight;
using reference_parts::weight_norms;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Rows of weight, bias and soft targets' columns.
std::int64_t padded(const ReferenceProblem& p) {
  return p.vocab_padded == 0 ? p.vocab : p.vocab_padded;
}

double class_weight(const ReferenceProblem& p, std::int64_t v) {
  return p.class_weights.empty() ? 1.0 : p.class_weights[static_cast<std::size_t>(v)];
}

/// a times b, where nothing of something infinite is nothing.
double times(double a, double b) { return a == 0 ? 0 : a * b; }

/// A loss under its weight: one of 0 keeps out an infinite loss, but hides no NaN.
double weighed(double weight, double loss) {
  return weight == 0 && std::isinf(loss) ? 0 : weight * loss;
}

RowKind kind_of(const ReferenceProblem& p, std::int64_t i) {
  if (!p.soft_targets.empty()) return RowKind::ordinary;
  const std::int64_t y = p.targets[static_cast<std::size_t>(i)];
  if (y == p.ignore_index) return RowKind::ignored;
  return y < 0 || y >= p.vocab ? RowKind::invalid : RowKind::ordinary;
}

double smoothing(const ReferenceProblem& p) {
  const auto vocab = static_cast<double>(p.vocab);
  return p.label_smoothing_form == SmoothingForm::megatron && p.label_smoothing != 0
             ? p.label_smoothing * vocab / (vocab - 1)
             : p.label_smoothing;
}

/// u_v = x . w_v + b_v
std::vector<double> products(const ReferenceProblem& p, std::int64_t row) {
  std::vector<double> u(static_cast<std::size_t>(p.vocab));
  const double* x = p.hidden.data() + row * p.hidden_size;
#pragma omp parallel for if (p.vocab * p.hidden_size > 1 << 16)
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const double* w = p.weight.data() + v * p.hidden_size;
    double sum = 0;
    for (std::int64_t k = 0; k < p.hidden_size; ++k) sum += x[k] * w[k];
    u[static_cast<std::size_t>(v)] = sum + at(p.bias, v, 0.0);
  }
  return u;
}

/// z_v = cap tanh(s u_v / cap)
std::vector<double> logits(const ReferenceProblem& p, std::vector<double> u) {
  for (double& value : u) {
    value *= p.logit_scale;
    if (p.softcap != 0) value = p.softcap * std::tanh(value / p.softcap);
  }
  return u;
}

/// The weight of each (lse - z_v) in the cross-entropy of a row: with them
/// ce = sum_v weight_v (lse - z_v), for hard targets (1 - a) c_y [v == y] + a c_v / V, for soft
/// ones c_v ((1 - a) q_v + a / V).
std::vector<double> target_weights(const ReferenceProblem& p, std::int64_t row) {
  const double a = smoothing(p);
  std::vector<double> weights(static_cast<std::size_t>(p.vocab));
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const double q = p.soft_targets.empty()
                         ? (p.targets[static_cast<std::size_t>(row)] == v ? 1.0 : 0.0)
                         : p.soft_targets[static_cast<std::size_t>(row * padded(p) + v)];
    weights[static_cast<std::size_t>(v)] =
        times((1 - a) * q + a / static_cast<double>(p.vocab), class_weight(p, v));
  }
  return weights;
}

Row softmax_row(const ReferenceProblem& p, std::int64_t index) {
  Row row;
  row.index = index;
  row.kind = kind_of(p, index);
  row.u = products(p, index);
  row.z = logits(p, row.u);
  row.max = *std::max_element(row.z.begin(), row.z.end());
  // Sums over the vocabulary: equal terms would drift in double.
  long double sum = 0, mean = 0;
  for (const double z : row.z) sum += std::exp(z - row.max);
  row.log_sum = static_cast<double>(std::log(sum));
  row.lse = row.max + row.log_sum;
  for (const double z : row.z) {
    row.probability.push_back(static_cast<double>(std::exp(z - row.max) / sum));
    mean += times(row.probability.back(), z - row.max);
  }
  row.mean = static_cast<double>(mean);
  return row;
}

/// What the sum of the row losses is divided by.
double denominator_of(const ReferenceProblem& p, const std::vector<std::int64_t>& rows) {
  if (p.reduction == Reduction::none) return 1;
  if (p.normalizer) return *p.normalizer;
  if (p.reduction == Reduction::sum) return 1;
  double sum = 0;
  for (const std::int64_t i : rows) {
    if (kind_of(p, i) != RowKind::ordinary) continue;
    const double c =
        p.soft_targets.empty() ? class_weight(p, p.targets[static_cast<std::size_t>(i)]) : 1.0;
    sum += token_weight(p, i) * c;
  }
  return sum;
}

/// The row's entries of the per-row outputs, and its share of the parts of the sum.
void put_outputs(const ReferenceProblem& p, Row& row, ReferenceResult& out) {
  const auto i = static_cast<std::size_t>(row.index);
  out.lse[i] = row.lse;
  out.entropy[i] = row.log_sum - row.mean;
  out.argmax[i] = std::max_element(row.z.begin(), row.z.end()) - row.z.begin();
  if (row.kind == RowKind::invalid)
    out.row_loss[i] = out.target_logprob[i] = out.cross_entropy = nan;
  if (row.kind != RowKind::ordinary) return;

  row.weights = target_weights(p, row.index);
  long double sum = 0;
  double terms = 0;
  for (std::size_t v = 0; v < row.z.size(); ++v) {
    sum += times(row.weights[v], row.lse - row.z[v]);
    if (std::isfinite(row.z[v]))
      terms += std::abs(row.weights[v]) * (std::abs(row.lse) + std::abs(row.z[v]));
  }
  const auto ce = static_cast<double>(sum);
  const double t = token_weight(p, row.index);
  // A coefficient of 0 keeps out what it multiplies, an infinite term too.
  const double squared = p.z_loss == 0 ? 0 : p.z_loss * row.lse * row.lse;
  out.row_loss[i] = weighed(t, ce) + weighed(t, squared);
  out.row_terms[i] = std::abs(t) * (terms + std::abs(squared));
  out.cross_entropy += weighed(t, ce);
  out.z_loss += weighed(t, squared);
  out.counted_rows += 1;
  if (!p.soft_targets.empty()) return;
  const auto y = static_cast<std::size_t>(p.targets[i]);
  out.target_logprob[i] = row.z[y] - row.lse;
  out.correct[i] = out.argmax[i] == p.targets[i] ? 1 : 0;
}

ReferenceResult sized_result(const ReferenceProblem& p) {
  const auto n = static_cast<std::size_t>(p.rows);
  const auto v = static_cast<std::size_t>(padded(p));
  const auto d = static_cast<std::size_t>(p.hidden_size);
  ReferenceResult out;
  out.row_loss.assign(n, 0);
  out.lse.assign(n, nan);
  out.target_logprob.assign(n, 0);
  out.entropy.assign(n, nan);
  out.argmax.assign(n, -1);
  out.correct.assign(n, 0);
  out.grad_hidden.assign(n * d, 0);
  out.grad_weight.assign(p.weight_gradients ? v * d : 0, 0);
  out.grad_bias.assign(p.weight_gradients ? v : 0, 0);
  out.row_terms.assign(n, 0);
  out.hidden_terms = sized_terms(n);
  out.weight_terms = sized_terms(v);
  out.bias_terms = sized_terms(v);
  return out;
}

double magnitude(const ReferenceProblem& p, const Row& row) {
  // With a cap the slope's own relative change per change of s u is up to 2 / cap.
  const double amplification =
      std::abs(p.logit_scale) * (p.softcap == 0 ? 1.0 : std::max(1.0, 2 / p.softcap));
  double largest = 0;
  for (const double u : row.u)
    if (std::isfinite(u)) largest = std::max(largest, std::abs(u) * amplification);
  return largest;
}

}  // namespace

std::vector<double> reference_logits(const ReferenceProblem& problem, std::int64_t row) {
  return logits(problem, products(problem, row));
}

ReferenceResult reference(const ReferenceProblem& p) {
  ReferenceResult out = sized_result(p);
  std::vector<std::int64_t> rows;
  if (p.row_index)
    rows = *p.row_index;
  else
    for (std::int64_t i = 0; i < p.rows; ++i) rows.push_back(i);

  out.denominator = denominator_of(p, rows);
  const double factor = out.denominator == 0 ? 0 : 1 / out.denominator;
  const std::vector<double> w_norms = weight_norms(p);
  double sum = 0;
  for (const std::int64_t i : rows) {
    Row row = softmax_row(p, i);
    put_outputs(p, row, out);
    put_gradients(p, row, factor, w_norms, out);
    sum += out.row_loss[static_cast<std::size_t>(i)];
    out.logit_magnitude = std::max(out.logit_magnitude, magnitude(p, row));
  }
  for (auto* terms : {&out.hidden_terms, &out.weight_terms, &out.bias_terms}) finish_terms(*terms);

  // Nothing counts: the loss is 0, even of an infinite sum; NaN is never hidden.
  const auto reduced = [&](double value) {
    return out.denominator == 0 && std::isinf(value) ? 0 : value * factor;
  };
  out.loss = p.reduction == Reduction::none ? out.row_loss : std::vector<double>{reduced(sum)};
  out.cross_entropy = reduced(out.cross_entropy);
  out.z_loss = reduced(out.z_loss);
  return out;
}

}  // namespace shardloss
