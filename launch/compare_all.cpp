#include <cmath>

#include "compare.hpp"

namespace shardloss {
namespace {

/// The absolute allowance of each row loss: its terms' formation, and a logit that is off.
std::vector<double> row_loss_allowance(const ReferenceProblem& problem,
                                       const ReferenceResult& exact,
                                       const tolerance::Allowed& allowed) {
  std::vector<double> out = exact.row_terms;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double t = problem.token_weights.empty() ? 1 : problem.token_weights[i];
    const double slope = 1 + 2 * problem.z_loss * std::abs(exact.lse[i]);
    out[i] = allowed.formed * out[i];
    if (std::isfinite(slope) && exact.row_terms[i] != 0)
      out[i] += std::abs(t) * slope * allowed.logit;
  }
  return out;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

std::vector<Comparison> compare_all(const ReferenceProblem& problem, const ReferenceResult& exact,
                                    const Answer& answer, const tolerance::Allowed& allowed) {
  std::vector<Comparison> out;
  const std::vector<double> row_absolute = row_loss_allowance(problem, exact, allowed);
  const std::vector<double> logit(exact.lse.size(), allowed.logit);
  const double factor = exact.denominator == 0 ? 0 : std::abs(1 / exact.denominator);
  const std::vector<double> sum_absolute = {sum_of(row_absolute) * factor};
  const auto values = [&](const char* name, const std::vector<double>& got,
                          const std::vector<double>& want, const std::vector<double>& absolute) {
    if (!got.empty())
      out.push_back(compare_values(name, got, want, allowed.value, absolute, allowed.largest));
  };
  const auto gradient = [&](const char* name, const std::vector<double>& got,
                            const std::vector<double>& want, std::int64_t columns,
                            const ReferenceTerms& terms, const tolerance::Range& range,
                            const std::vector<double>& before) {
    if (got.empty()) return;
    std::vector<double> sum = want;
    for (std::size_t i = 0; i < before.size(); ++i) sum[i] += before[i];
    out.push_back(compare_gradient(name, got, sum, columns, terms, allowed, range, before));
  };

  values("loss", answer.loss, exact.loss,
         problem.reduction == Reduction::none ? row_absolute : sum_absolute);
  values("row_loss", answer.row_loss, exact.row_loss, row_absolute);
  values("lse", answer.lse, exact.lse, logit);
  values("target_logprob", answer.target_logprob, exact.target_logprob, logit);
  values("entropy", answer.entropy, exact.entropy, logit);
  values("cross_entropy", answer.cross_entropy, {exact.cross_entropy}, sum_absolute);
  values("z_loss", answer.z_loss, {exact.z_loss}, sum_absolute);
  if (!answer.argmax.empty())
    out.push_back(compare_argmax(problem, answer.argmax, exact.argmax, allowed.logit));
  if (!answer.correct.empty())
    out.push_back(compare_correct(problem, answer.correct, answer.argmax));
  if (!answer.counted_rows.empty()) {
    const std::int64_t want[] = {exact.counted_rows};
    out.push_back(compare_exact("counted_rows", answer.counted_rows, want));
  }
  gradient("grad_hidden", answer.grad_hidden, exact.grad_hidden, problem.hidden_size,
           exact.hidden_terms, allowed.hidden, answer.before_hidden);
  gradient("grad_weight", answer.grad_weight, exact.grad_weight, problem.hidden_size,
           exact.weight_terms, allowed.weight, answer.before_weight);
  gradient("grad_bias", answer.grad_bias, exact.grad_bias, 1, exact.bias_terms, allowed.weight,
           answer.before_bias);
  return out;
}

}  // namespace shardloss
