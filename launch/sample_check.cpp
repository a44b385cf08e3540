#include "sample_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "convert.hpp"

namespace shardloss::launch {
namespace {

/// A few rows, both ends among them.
std::vector<std::int64_t> sample_rows(std::int64_t rows, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (const std::int64_t row :
       {std::int64_t{0}, std::int64_t{1}, rows / 3, rows / 2, rows - 2, rows - 1})
    if (row >= 0 && row < rows && (out.empty() || row > out.back())) out.push_back(row);
  if (static_cast<std::int64_t>(out.size()) > most)
    out.erase(out.begin(), out.end() - static_cast<std::ptrdiff_t>(most));
  return out;
}

/// Field values of some rows only.
std::vector<double> pick(const Source& source, Field field, DType dtype,
                         const std::vector<std::int64_t>& rows) {
  std::vector<double> out;
  if (!source.has(field)) return out;
  const auto sizes = source.shape(field);
  if (sizes.empty()) return source.read_scalar(field, dtype).doubles();
  for (const std::int64_t row : rows) {
    const auto values =
        source.read(field, {row, 1, 0, sizes.size() == 2 ? sizes[1] : 1}, dtype).doubles();
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

/// The problem of the sample alone. Its sum divided by the whole denominator has the whole's
/// gradients.
ReferenceProblem sample_problem(const BenchData& data, const std::vector<std::int64_t>& rows) {
  Options options = data.options;
  const Problem& problem = data.share.problem;
  const DType dtype = problem.dtype, real = real_of(problem);
  const Source& source = *data.source;
  ReferenceProblem p;
  p.rows = static_cast<std::int64_t>(rows.size());
  p.hidden_size = problem.hidden;
  p.vocab = problem.vocab;
  p.vocab_padded = problem.vocab_padded;
  p.hidden = pick(source, Field::hidden, dtype, rows);
  p.weight = source.read_all(Field::weight, dtype).doubles();
  if (source.has(Field::bias)) p.bias = source.read_all(Field::bias, dtype).doubles();
  p.soft_targets = pick(source, Field::soft_targets, real, rows);
  p.token_weights = pick(source, Field::token_weights, real, rows);
  if (source.has(Field::class_weights))
    p.class_weights = source.read_all(Field::class_weights, real).doubles();
  if (options.upstream_scale) p.upstream_loss = {*options.upstream_scale};
  if (source.has(Field::upstream)) p.upstream_loss = pick(source, Field::upstream, real, rows);
  p.upstream_lse = pick(source, Field::upstream_lse, real, rows);
  p.upstream_logprob = pick(source, Field::upstream_logprob, real, rows);
  p.upstream_entropy = pick(source, Field::upstream_entropy, real, rows);
  p.weight_gradients = false;
  p.reduction = problem.reduction == Reduction::none ? Reduction::none : Reduction::sum;
  p.ignore_index = problem.ignore_index;
  p.logit_scale = problem.logit_scale;
  p.softcap = problem.softcap;
  p.label_smoothing = problem.label_smoothing;
  p.label_smoothing_form = problem.label_smoothing_form;
  p.z_loss = problem.z_loss;
  if (!source.has(Field::targets)) return p;
  const auto all = source.read_all(Field::targets, DType::int64).integers();
  for (const std::int64_t row : rows) p.targets.push_back(all[static_cast<std::size_t>(row)]);
  return p;
}

/// What divides the sum of all rows' losses.
double whole_denominator(const BenchData& data) {
  const Problem& problem = data.share.problem;
  if (data.options.normalizer) return *data.options.normalizer;
  if (problem.reduction != Reduction::mean) return 1;
  const Source& source = *data.source;
  const DType real = real_of(problem);
  const auto rows = static_cast<std::size_t>(data.share.total_rows);
  std::vector<double> weights(rows, 1), classes;
  if (source.has(Field::token_weights))
    weights = source.read_all(Field::token_weights, real).doubles();
  if (source.has(Field::class_weights))
    classes = source.read_all(Field::class_weights, real).doubles();
  std::vector<std::int64_t> targets;
  if (source.has(Field::targets))
    targets = source.read_all(Field::targets, DType::int64).integers();
  double sum = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int64_t y = targets.empty() ? 0 : targets[i];
    const bool ordinary =
        targets.empty() || (y != problem.ignore_index && y >= 0 && y < problem.vocab);
    const double c =
        targets.empty() || classes.empty() ? 1.0 : classes[static_cast<std::size_t>(y)];
    if (ordinary) sum += weights[i] * c;
  }
  return sum;
}

/// A result with a row for each token row, and where it goes.
struct Sampled {
  const HostArray& array;
  std::vector<double> Answer::*to;
};

/// Those that were asked for, the same on every rank.
std::vector<Sampled> sampled(const Results& results) {
  std::vector<Sampled> out;
  for (const Sampled& one :
       {Sampled{results.lse, &Answer::lse}, Sampled{results.row_loss, &Answer::row_loss},
        Sampled{results.target_logprob, &Answer::target_logprob},
        Sampled{results.entropy, &Answer::entropy},
        Sampled{results.grad_hidden, &Answer::grad_hidden}})
    if (one.array.given()) out.push_back(one);
  return out;
}

/// Results of the sample, from the ranks that own its rows. Collective.
Answer collect(const Communicator& host, const BenchData& data, const Results& results,
               const std::vector<std::int64_t>& rows) {
  const Share& share = data.share;
  const auto outputs = sampled(results);
  std::int64_t width = 0;
  for (const Sampled& one : outputs) width += one.array.columns();
  std::vector<double> mine(rows.size() * static_cast<std::size_t>(width), 0);
  const bool contributes = share.problem.layout == Layout::row_sharded || share.rank == 0;
  for (std::size_t k = 0; k < rows.size() && contributes; ++k) {
    const std::int64_t i = rows[k] - share.first_row;
    if (i < 0 || i >= share.rows) continue;
    double* to = mine.data() + static_cast<std::int64_t>(k) * width;
    for (const Sampled& one : outputs) {
      const HostArray& array = one.array;
      const auto* from = static_cast<const std::byte*>(array.data());
      convert(from + i * array.columns() * static_cast<std::int64_t>(size_of(array.dtype())),
              array.dtype(), to, DType::float64, array.columns());
      to += array.columns();
    }
  }
  std::vector<double> all(mine.size() * static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(mine.data(), all.data(), mine.size() * sizeof(double));
  for (std::size_t i = mine.size(); i < all.size(); ++i) all[i % mine.size()] += all[i];
  Answer answer;
  const double* from = all.data();
  for (std::size_t k = 0; k < rows.size(); ++k)
    for (const Sampled& one : outputs) {
      std::vector<double>& to = answer.*one.to;
      to.insert(to.end(), from, from + one.array.columns());
      from += one.array.columns();
    }
  return answer;
}

/// The sum of the products of two arrays' elements.
double inner_product(const HostArray& a, const HostArray& b) {
  double sum = 0;
  const std::int64_t columns = a.columns();
#pragma omp parallel for reduction(+ : sum)
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    std::vector<double> left(static_cast<std::size_t>(columns)), right(left.size());
    const auto row = [&](const HostArray& array, std::vector<double>& to) {
      const auto* from = static_cast<const std::byte*>(array.data());
      convert(from + i * columns * static_cast<std::int64_t>(size_of(array.dtype())), array.dtype(),
              to.data(), DType::float64, columns);
    };
    row(a, left);
    row(b, right);
    for (std::size_t k = 0; k < left.size(); ++k) sum += left[k] * right[k];
  }
  return sum;
}

/// |sum dW . W - sum dX . X| as a share of what is allowed. Collective.
double identity_share(const Communicator& host, const BenchData& data, const Results& results,
                      double relative) {
  const Share& share = data.share;
  if (!results.grad_weight.given() || !results.grad_hidden.given()) return 0;
  // Padding rows of the weight may hold NaN; they are at the end and have no gradient.
  HostArray weight(share.problem.dtype, {share.shard.vocab, share.problem.hidden},
                   share.problem.hidden, share.weight.data(), nullptr);
  HostArray gradient(results.grad_weight.dtype(), weight.shape(), share.problem.hidden,
                     results.grad_weight.data(), nullptr);
  const bool contributes = share.problem.layout == Layout::row_sharded || share.rank == 0;
  const double mine[2] = {inner_product(gradient, weight),
                          contributes ? inner_product(results.grad_hidden, share.hidden) : 0};
  std::vector<double> all(2 * static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(mine, all.data(), sizeof mine);
  double weights = 0, rows = 0;
  for (std::size_t r = 0; r < all.size(); r += 2) weights += all[r], rows += all[r + 1];
  const double scale = std::max(std::abs(weights), std::abs(rows));
  if (scale == 0) return 0;
  return std::abs(weights - rows) / (tolerance::row_factor * relative * scale);
}

}  // namespace

double check_sample(const Communicator& host, const BenchData& data, const Loss& loss,
                    const Job& job) {
  if (data.options.check_rows == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto rows = sample_rows(data.share.total_rows, data.options.check_rows);
  const Answer answer = collect(host, data, job.results(), rows);
  // What rank 0 finds, and the relative tolerance for the identity.
  double verdict[2] = {0, 0};
  if (host.rank() == 0) {
    ReferenceProblem sample = sample_problem(data, rows);
    if (sample.reduction == Reduction::sum) sample.normalizer = whole_denominator(data);
    const ReferenceResult exact = reference(sample);
    const auto allowed = tolerance::allowed(
        loss.problem(), loss.plan().logits_dtype, exact.logit_magnitude,
        static_cast<double>(std::max<std::int64_t>(loss.plan().chunks, loss.plan().ranks)));
    for (const Comparison& one : compare_all(sample, exact, answer, allowed))
      verdict[0] = std::max(verdict[0], one.share);
    verdict[1] = allowed.gradient;
  }
  std::vector<double> all(2 * static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(verdict, all.data(), sizeof verdict);
  return std::max(all[0], identity_share(host, data, job.results(), all[1]));
}

}  // namespace shardloss::launch
