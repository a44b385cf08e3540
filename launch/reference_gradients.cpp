// The reference's gradients, and the terms that they are made of.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference_parts.hpp"

namespace shardloss::reference_parts {
namespace {

double norm(const double* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t k = 0; k < count; ++k) sum += values[k] * values[k];
  return std::sqrt(sum);
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

}  // namespace

std::vector<double> weight_norms(const ReferenceProblem& p) {
  std::vector<double> norms(static_cast<std::size_t>(p.vocab));
#pragma omp parallel for if (p.vocab * p.hidden_size > 1 << 16)
  for (std::int64_t v = 0; v < p.vocab; ++v)
    norms[static_cast<std::size_t>(v)] = norm(p.weight.data() + v * p.hidden_size, p.hidden_size);
  return norms;
}

ReferenceTerms sized_terms(std::size_t rows) {
  const std::vector<double> zeros(rows);
  return {zeros, zeros, zeros, zeros, zeros, 0};
}

void finish_terms(ReferenceTerms& terms) {
  for (auto* values : {&terms.rounded, &terms.perturbed, &terms.factors})
    for (double& value : *values) value = std::sqrt(value);
}

void put_gradients(const ReferenceProblem& p, const Row& row, double factor,
                   const std::vector<double>& w_norms, ReferenceResult& out) {
  if (row.kind != RowKind::ordinary) return;
  long double sum = 0;
  for (const double weight : row.weights) sum += weight;
  const auto mass = static_cast<double>(sum);
  std::vector<Derivative> du(row.z.size());
  for (std::size_t v = 0; v < du.size(); ++v) {
    du[v] = derivative(p, row, v, mass, factor);
    for (auto* terms : {&out.hidden_terms, &out.weight_terms, &out.bias_terms})
      terms->largest = std::max(terms->largest, du[v].formed);
  }

  put_hidden_gradient(p, row, du, w_norms, out);
  if (p.weight_gradients) put_weight_gradient(p, row, du, out);
}

}  // namespace shardloss::reference_parts
