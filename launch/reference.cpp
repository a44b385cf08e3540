#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardloss {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

enum class RowKind { ordinary, ignored, invalid };

std::int64_t padded(const ReferenceProblem& p) {
  return p.vocab_padded == 0 ? p.vocab : p.vocab_padded;
}

double at(const std::vector<double>& values, std::int64_t i, double otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values[0] : values[static_cast<std::size_t>(i)];
}

double token_weight(const ReferenceProblem& p, std::int64_t i) {
  return p.token_weights.empty() ? 1.0 : p.token_weights[static_cast<std::size_t>(i)];
}

double class_weight(const ReferenceProblem& p, std::int64_t v) {
  return p.class_weights.empty() ? 1.0 : p.class_weights[static_cast<std::size_t>(v)];
}

/// a times b, where nothing of something infinite is nothing.
double times(double a, double b) { return a == 0 ? 0 : a * b; }

double norm(const double* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t k = 0; k < count; ++k) sum += values[k] * values[k];
  return std::sqrt(sum);
}

std::vector<double> weight_norms(const ReferenceProblem& p) {
  std::vector<double> norms(static_cast<std::size_t>(p.vocab));
#pragma omp parallel for if (p.vocab * p.hidden_size > 1 << 16)
  for (std::int64_t v = 0; v < p.vocab; ++v)
    norms[static_cast<std::size_t>(v)] = norm(p.weight.data() + v * p.hidden_size, p.hidden_size);
  return norms;
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
        class_weight(p, v) * ((1 - a) * q + a / static_cast<double>(p.vocab));
  }
  return weights;
}

/// One row while it is worked on.
struct Row {
  std::int64_t index = 0;
  RowKind kind = RowKind::ordinary;
  std::vector<double> u, z, probability, weights;
  double max = 0, log_sum = 0;  // lse = max + log_sum
  double lse = 0, mean = 0;     // mean: E_p[z - max], small where z is large
};

Row softmax_row(const ReferenceProblem& p, std::int64_t index) {
  Row row;
  row.index = index;
  row.kind = kind_of(p, index);
  row.u = products(p, index);
  row.z = logits(p, row.u);
  row.max = *std::max_element(row.z.begin(), row.z.end());
  double sum = 0;
  for (const double z : row.z) sum += std::exp(z - row.max);
  row.log_sum = std::log(sum);
  row.lse = row.max + row.log_sum;
  for (const double z : row.z) {
    row.probability.push_back(std::exp(z - row.max) / sum);
    row.mean += times(row.probability.back(), z - row.max);
  }
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

/// The row's entries of the per-row outputs, and its share of the parts of the loss.
void put_outputs(const ReferenceProblem& p, Row& row, double factor, ReferenceResult& out) {
  const auto i = static_cast<std::size_t>(row.index);
  out.lse[i] = row.lse;
  out.entropy[i] = row.log_sum - row.mean;
  out.argmax[i] = std::max_element(row.z.begin(), row.z.end()) - row.z.begin();
  if (row.kind == RowKind::invalid)
    out.row_loss[i] = out.target_logprob[i] = out.cross_entropy = nan;
  if (row.kind != RowKind::ordinary) return;

  row.weights = target_weights(p, row.index);
  double ce = 0, terms = 0;
  for (std::size_t v = 0; v < row.z.size(); ++v) {
    ce += times(row.weights[v], row.lse - row.z[v]);
    if (std::isfinite(row.z[v]))
      terms += std::abs(row.weights[v]) * (std::abs(row.lse) + std::abs(row.z[v]));
  }
  const double t = token_weight(p, row.index);
  const double squared = p.z_loss * row.lse * row.lse;
  out.row_loss[i] = t * (ce + squared);
  out.row_terms[i] = std::abs(t) * (terms + std::abs(squared));
  out.cross_entropy += t * ce * factor;
  out.z_loss += t * squared * factor;
  out.counted_rows += 1;
  if (!p.soft_targets.empty()) return;
  const auto y = static_cast<std::size_t>(p.targets[i]);
  out.target_logprob[i] = row.z[y] - row.lse;
  out.correct[i] = out.argmax[i] == p.targets[i] ? 1 : 0;
}

/// The gradient of everything with respect to u_v, and how it answers to rounding.
struct Derivative {
  double value = 0;
  double formed = 0;     ///< sum of the absolute values that make it up
  double perturbed = 0;  ///< bound of its change for a relative one of the logits, over that
};

Derivative derivative(const ReferenceProblem& p, const Row& row, std::size_t v, double mass,
                      double factor) {
  const double z = row.z[v];
  if (z == -std::numeric_limits<double>::infinity()) return {};  // masked: no gradient
  const std::int64_t i = row.index;
  const double probability = row.probability[v];
  const bool hit = p.soft_targets.empty() &&
                   p.targets[static_cast<std::size_t>(i)] == static_cast<std::int64_t>(v);
  const double g = at(p.upstream_loss, i, 1.0) * factor * token_weight(p, i);
  const double g_lse = at(p.upstream_lse, i, 0.0);
  const double g_logprob = at(p.upstream_logprob, i, 0.0);
  const double g_entropy = at(p.upstream_entropy, i, 0.0);

  const double terms[] = {
      g * mass * probability,                               // d(mass lse)
      -g * row.weights[v],                                  // d(-sum weight z)
      g * 2 * p.z_loss * row.lse * probability,             // d(k lse^2)
      g_lse * probability,                                  // d lse
      hit ? g_logprob : 0.0,                                // d(z_y - lse)
      -g_logprob * probability,                             //
      -g_entropy * probability * (z - row.max - row.mean),  // d(lse - E[z])
  };
  Derivative out;
  for (const double term : terms) {
    out.value += term;
    out.formed += std::abs(term);
  }
  // d p_v = p_v (dz_v - sum_j p_j dz_j), the coefficients change with lse and E[z].
  out.perturbed =
      probability *
      ((1 - probability) * (std::abs(g * (mass + 2 * p.z_loss * row.lse)) + std::abs(g_lse) +
                            std::abs(g_logprob) + std::abs(g_entropy * (z - row.max - row.mean))) +
       std::abs(2 * g * p.z_loss) + std::abs(g_entropy));
  double slope = p.logit_scale;
  if (p.softcap != 0) {
    const double cosh = std::cosh(p.logit_scale * row.u[v] / p.softcap);
    slope /= cosh * cosh;  // 1 - tanh^2
  }
  out.value *= slope;
  out.formed *= std::abs(p.logit_scale);
  out.perturbed *= std::abs(slope);
  if (p.softcap != 0) out.perturbed += std::abs(out.value);  // the slope changes too
  return out;
}

void add_terms(ReferenceTerms& terms, std::size_t row, const Derivative& g, double factor) {
  terms.formed[row] += g.formed * factor;
  terms.rounded[row] += g.value * g.value * factor * factor;
  terms.summed[row] += std::abs(g.value) * factor;
  terms.perturbed[row] += g.perturbed * g.perturbed * factor * factor;
  terms.factors[row] += factor * factor;
}

/// dX_i = sum_v du_iv w_v
void put_hidden_gradient(const ReferenceProblem& p, const Row& row,
                         const std::vector<Derivative>& du, const std::vector<double>& w_norms,
                         ReferenceResult& out) {
  const std::int64_t d = p.hidden_size;
  double* dx = out.grad_hidden.data() + row.index * d;
#pragma omp parallel for reduction(+ : dx[:d]) if (p.vocab * d > 1 << 16)
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const double* w = p.weight.data() + v * d;
    for (std::int64_t k = 0; k < d; ++k) dx[k] += du[static_cast<std::size_t>(v)].value * w[k];
  }
  for (std::size_t v = 0; v < du.size(); ++v)
    add_terms(out.hidden_terms, static_cast<std::size_t>(row.index), du[v], w_norms[v]);
}

/// dW_v += du_iv x_i, db_v += du_iv
void put_weight_gradient(const ReferenceProblem& p, const Row& row,
                         const std::vector<Derivative>& du, ReferenceResult& out) {
  const std::int64_t d = p.hidden_size;
  const double* x = p.hidden.data() + row.index * d;
  const double x_norm = norm(x, d);
#pragma omp parallel for if (p.vocab * d > 1 << 16)
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const auto at_v = static_cast<std::size_t>(v);
    const Derivative& g = du[at_v];
    double* dw = out.grad_weight.data() + v * d;
    for (std::int64_t k = 0; k < d; ++k) dw[k] += g.value * x[k];
    out.grad_bias[at_v] += g.value;
    add_terms(out.weight_terms, at_v, g, x_norm);
    add_terms(out.bias_terms, at_v, g, 1);
  }
}

void put_gradients(const ReferenceProblem& p, const Row& row, double factor,
                   const std::vector<double>& w_norms, ReferenceResult& out) {
  if (row.kind != RowKind::ordinary) return;
  double mass = 0;
  for (const double weight : row.weights) mass += weight;
  std::vector<Derivative> du(row.z.size());
  for (std::size_t v = 0; v < du.size(); ++v) {
    du[v] = derivative(p, row, v, mass, factor);
    for (auto* terms : {&out.hidden_terms, &out.weight_terms, &out.bias_terms})
      terms->largest = std::max(terms->largest, du[v].formed);
  }

  put_hidden_gradient(p, row, du, w_norms, out);
  if (p.weight_gradients) put_weight_gradient(p, row, du, out);
}

ReferenceTerms sized_terms(std::size_t rows) {
  const std::vector<double> zeros(rows);
  return {zeros, zeros, zeros, zeros, zeros, 0};
}

/// Sums of squares become norms.
void finish_terms(ReferenceTerms& terms) {
  for (auto* values : {&terms.rounded, &terms.perturbed, &terms.factors})
    for (double& value : *values) value = std::sqrt(value);
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
    put_outputs(p, row, factor, out);
    put_gradients(p, row, factor, w_norms, out);
    sum += out.row_loss[static_cast<std::size_t>(i)];
    out.logit_magnitude = std::max(out.logit_magnitude, magnitude(p, row));
  }
  for (auto* terms : {&out.hidden_terms, &out.weight_terms, &out.bias_terms}) finish_terms(*terms);

  // Nothing counts: the loss is 0, unless a row is invalid, which is never hidden.
  out.loss = p.reduction == Reduction::none ? out.row_loss : std::vector<double>{sum * factor};
  return out;
}

}  // namespace shardloss
