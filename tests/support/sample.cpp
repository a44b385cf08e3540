#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

#include "elements.hpp"
#include "shardloss/plan.hpp"

namespace shardloss::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double normal() {  // Box-Muller: the same in every standard library
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
  }
  bool chance(double p) { return uniform() < p; }
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[integer(0, static_cast<std::int64_t>(from.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

void fill_weight(Sample& sample, int ranks, Random& random) {
  const std::int64_t d = sample.problem.hidden;
  ReferenceProblem& data = sample.data;
  data.weight.assign(static_cast<std::size_t>(data.vocab_padded * d), nan);
  for (const Shard& shard : make_shards(sample.problem, ranks)) {
    const double scale = (0.5 + 2 * random.uniform()) / std::sqrt(static_cast<double>(d));
    const double mean = 2 * random.normal() / std::sqrt(static_cast<double>(d));
    for (std::int64_t i = shard.first * d; i < (shard.first + shard.vocab) * d; ++i)
      data.weight[static_cast<std::size_t>(i)] =
          rounded(mean + scale * random.normal(), sample.problem.dtype);
  }
  if (!sample.problem.bias) return;
  data.bias.assign(static_cast<std::size_t>(data.vocab_padded), nan);
  for (std::int64_t v = 0; v < data.vocab; ++v)
    data.bias[static_cast<std::size_t>(v)] = rounded(random.normal(), sample.problem.dtype);
}

void fill_hidden(Sample& sample, Random& random) {
  const std::int64_t d = sample.problem.hidden;
  ReferenceProblem& data = sample.data;
  data.hidden.resize(static_cast<std::size_t>(data.rows * d));
  for (double& x : data.hidden) x = 0.5 + random.normal();
  const auto row = [&](std::int64_t i) { return data.hidden.data() + i * d; };
  if (data.rows > 4) {
    // Past exp's overflow in float32; then one row whose logits are all negative.
    const bool wide = size_of(sample.problem.dtype) > 2;
    for (std::int64_t k = 0; k < d; ++k) row(2)[k] *= wide ? 40 : 4;
    double sum = 0;
    for (std::int64_t v = 0; v < data.vocab; ++v)
      sum += data.weight[static_cast<std::size_t>(v * d)];
    for (std::int64_t k = 0; k < d; ++k) row(3)[k] = k == 0 ? (sum > 0 ? -3 : 3) : 0;
  }
  for (double& x : data.hidden) x = rounded(x, sample.problem.dtype);
}

void fill_targets(Sample& sample, int ranks, Random& random) {
  ReferenceProblem& data = sample.data;
  std::vector<std::int64_t> borders;
  for (const Shard& shard : make_shards(sample.problem, ranks)) {
    if (shard.vocab == 0) continue;
    borders.push_back(shard.first);
    borders.push_back(shard.first + shard.vocab - 1);
  }
  data.targets.clear();
  for (std::int64_t i = 0; i < data.rows; ++i) {
    const bool border = random.chance(0.3);
    data.targets.push_back(border ? borders[static_cast<std::size_t>(random.integer(
                                        0, static_cast<std::int64_t>(borders.size()) - 1))]
                                  : random.integer(0, data.vocab - 1));
    if (random.chance(0.15)) data.targets.back() = data.ignore_index;
  }
  if (data.rows > 2) data.targets.front() = data.targets.back() = data.ignore_index;
}

void fill_soft_targets(Sample& sample, Random& random) {
  ReferenceProblem& data = sample.data;
  data.soft_targets.assign(static_cast<std::size_t>(data.rows * data.vocab_padded), nan);
  for (std::int64_t i = 0; i < data.rows; ++i) {
    double* q = data.soft_targets.data() + i * data.vocab_padded;
    double sum = 0;
    for (std::int64_t v = 0; v < data.vocab; ++v) sum += q[v] = std::exp(2 * random.normal());
    for (std::int64_t v = 0; v < data.vocab; ++v)
      q[v] = rounded(q[v] / sum, real_dtype(sample.problem));
  }
}

std::vector<double> upstream(const Sample& sample, bool per_row, Random& random) {
  std::vector<double> values(static_cast<std::size_t>(per_row ? sample.data.rows : 1));
  for (double& value : values) value = rounded(random.normal(), real_dtype(sample.problem));
  return values;
}

void fill_row_values(Sample& sample, Random& random) {
  ReferenceProblem& data = sample.data;
  const DType real = real_dtype(sample.problem);
  if (random.chance(0.5)) {
    for (std::int64_t i = 0; i < data.rows; ++i)
      data.token_weights.push_back(
          rounded(random.chance(0.2) ? 0 : 1 + 0.7 * random.normal(), real));
  }
  if (sample.problem.class_weights)
    for (std::int64_t v = 0; v < data.vocab; ++v)
      data.class_weights.push_back(rounded(0.1 + 2 * random.uniform(), real));
  if (sample.problem.normalizer) data.normalizer = rounded(1 + 9 * random.uniform(), real);
  const bool per_row = sample.problem.reduction == Reduction::none;
  if (random.chance(0.7)) data.upstream_loss = upstream(sample, per_row, random);
  if (random.chance(0.3)) data.upstream_lse = upstream(sample, random.chance(0.5), random);
  if (random.chance(0.3) && !sample.problem.soft_targets)
    data.upstream_logprob = upstream(sample, random.chance(0.5), random);
  if (sample.problem.entropy && random.chance(0.7))
    data.upstream_entropy = upstream(sample, random.chance(0.5), random);
}

void fill_row_index(Sample& sample, Random& random) {
  if (!sample.problem.row_index || random.chance(0.2)) return;
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < sample.data.rows; ++i)
    if (random.chance(0.4)) index.push_back(i);
  sample.data.row_index = index;
}

std::vector<std::int64_t> split_at_random(std::int64_t total, int parts, Random& random) {
  std::vector<std::int64_t> cuts = {0, total};
  for (int i = 1; i < parts; ++i) cuts.push_back(random.integer(0, total));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int64_t> split;
  for (std::size_t i = 1; i < cuts.size(); ++i) split.push_back(cuts[i] - cuts[i - 1]);
  return split;
}

Chunking random_chunking(std::int64_t rows, Random& random) {
  switch (random.integer(0, 4)) {
    case 0: return {};
    case 1: return {Chunking::Rule::aspect_ratio, random.integer(1, 4)};
    case 2: return {Chunking::Rule::rows, rows + 5};
    default: return {Chunking::Rule::rows, random.integer(1, 13)};
  }
}

void draw_objective(Problem& p, Random& random) {
  p.reduction = random.pick({Reduction::none, Reduction::sum, Reduction::mean});
  p.normalizer = p.reduction != Reduction::none && random.chance(0.3);
  p.bias = random.chance(0.4);
  p.ignore_index = random.chance(0.25) ? random.integer(0, p.vocab - 1) : -100;
  if (random.chance(0.3)) p.logit_scale = 0.5 + random.uniform();
  if (random.chance(0.25)) p.softcap = 2 + 10 * random.uniform();
  if (random.chance(0.35)) p.label_smoothing = 0.05 + 0.3 * random.uniform();
  if (p.vocab > 2 && random.chance(0.3)) p.label_smoothing_form = SmoothingForm::megatron;
  if (random.chance(0.3)) p.z_loss = 0.02;
  p.class_weights = random.chance(0.25);
  p.entropy = random.chance(0.3);
  p.soft_targets = random.chance(0.15);
  if (p.soft_targets) p.ignore_index = Problem{}.ignore_index;
}

void draw_execution(Problem& p, Random& random) {
  p.chunking = random_chunking(p.max_rows, random);
  p.accumulation =
      random.pick({Accumulation::automatic, Accumulation::accurate, Accumulation::balanced});
  if (random.chance(0.3)) p.keep_logits = random.integer(1, p.max_rows + 1);
  p.grad_hidden = random.pick({GradDType::same, GradDType::float32});
  p.grad_weight = random.pick({GradDType::same, GradDType::float32});
  if (p.dtype == DType::float64) p.grad_hidden = p.grad_weight = GradDType::same;
  p.layout = random.pick({Layout::replicated, Layout::row_sharded});
  p.row_index = !p.soft_targets && random.chance(0.2);
}

Sample fill_all(const Problem& problem, std::int64_t rows, int ranks, Random& random) {
  Sample sample;
  sample.problem = problem;
  sample.data.rows = rows;
  describe(sample);
  if (problem.layout == Layout::row_sharded) sample.split = split_at_random(rows, ranks, random);
  fill_weight(sample, ranks, random);
  fill_hidden(sample, random);
  if (problem.soft_targets)
    fill_soft_targets(sample, random);
  else
    fill_targets(sample, ranks, random);
  return sample;
}

// A sample of `p` with every value that it has drawn at random.
Sample random_values(const Problem& p, int ranks, std::uint64_t seed, Random& random) {
  const std::int64_t rows = random.chance(0.3) ? random.integer(0, p.max_rows) : p.max_rows;
  Sample sample = fill_all(p, rows, ranks, random);
  sample.seed = seed;
  fill_row_values(sample, random);
  fill_row_index(sample, random);
  return sample;
}

}  // namespace

std::int64_t Sample::first_row(int rank) const {
  if (split.empty()) return 0;
  return std::accumulate(split.begin(), split.begin() + rank, std::int64_t{0});
}

std::int64_t Sample::own_rows(int rank) const {
  return split.empty() ? data.rows : split[static_cast<std::size_t>(rank)];
}

DType real_dtype(const Problem& problem) {
  return problem.dtype == DType::float64 ? DType::float64 : DType::float32;
}

void describe(Sample& sample) {
  const Problem& p = sample.problem;
  ReferenceProblem& data = sample.data;
  data.hidden_size = p.hidden;
  data.vocab = p.vocab;
  data.vocab_padded = p.vocab_padded == 0 ? p.vocab : p.vocab_padded;
  data.reduction = p.reduction;
  data.ignore_index = p.ignore_index;
  data.logit_scale = p.logit_scale;
  data.softcap = p.softcap;
  data.label_smoothing = p.label_smoothing;
  data.label_smoothing_form = p.label_smoothing_form;
  data.z_loss = p.z_loss;
}

Problem plain_problem(std::int64_t rows, std::int64_t hidden, std::int64_t vocab, DType dtype) {
  Problem problem;
  problem.max_rows = rows;
  problem.hidden = hidden;
  problem.vocab = vocab;
  problem.dtype = dtype;
  return problem;
}

Sample fill(const Problem& problem, int ranks, std::uint64_t seed) {
  return fill_rows(problem, problem.max_rows, ranks, seed);
}

Sample fill_rows(const Problem& problem, std::int64_t rows, int ranks, std::uint64_t seed) {
  Random random(seed);
  Sample sample = fill_all(problem, rows, ranks, random);
  sample.seed = seed;
  return sample;
}

Sample rows_of(const Sample& batch, std::int64_t first, std::int64_t rows) {
  Sample part = batch;
  const auto cut = [&](auto& values, std::int64_t width) {
    if (values.empty()) return;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * width);
    values = {begin, begin + static_cast<std::ptrdiff_t>(rows * width)};
  };
  cut(part.data.hidden, batch.problem.hidden);
  cut(part.data.targets, 1);
  cut(part.data.token_weights, 1);
  part.data.rows = rows;
  return part;
}

Sample random_sample(int ranks, std::uint64_t seed) {
  Random random(seed * 7919 + static_cast<std::uint64_t>(ranks));
  Problem p;
  p.max_rows = random.pick<std::int64_t>({0, 1, 2, 5, 7, 11, 19, 23, 35});
  p.hidden = random.pick<std::int64_t>({1, 2, 7, 11, 16, 19, 35});
  p.vocab = random.pick<std::int64_t>({1, 2, 5, 11, 13, 37, 64, 100, 131, 259});
  p.vocab_padded = random.chance(0.3) ? p.vocab + random.integer(1, 9) : 0;
  p.dtype = random.pick(
      {DType::float32, DType::float32, DType::float64, DType::bfloat16, DType::float16});
  if (random.chance(0.6))
    p.shard_widths = split_at_random(p.vocab_padded == 0 ? p.vocab : p.vocab_padded, ranks, random);
  draw_objective(p, random);
  draw_execution(p, random);
  return random_values(p, ranks, seed, random);
}

Sample random_plain_sample(int ranks, std::uint64_t seed) {
  Random random(seed * 6007 + static_cast<std::uint64_t>(ranks));
  Problem p;
  p.max_rows = random.pick<std::int64_t>({1, 2, 5, 7, 11});
  p.hidden = random.pick<std::int64_t>({1, 2, 7, 8});
  p.vocab = random.pick<std::int64_t>({1, 7, 64, 1003, 20011, 40003, 80001, 150001});
  p.vocab_padded = random.chance(0.3) ? p.vocab + random.integer(1, 9) : 0;
  p.dtype = DType::bfloat16;
  draw_objective(p, random);
  draw_execution(p, random);
  p.softcap = p.label_smoothing = 0;
  p.entropy = p.soft_targets = false;
  p.accumulation = Accumulation::balanced;
  return random_values(p, ranks, seed, random);
}

std::int64_t fewest_chunks(const std::vector<std::int64_t>& rows_per_rank, std::int64_t most) {
  if (std::accumulate(rows_per_rank.begin(), rows_per_rank.end(), std::int64_t{0}) == 0) return 0;
  for (std::int64_t chunks = 1;; ++chunks) {
    bool fits = true;
    for (std::int64_t i = 0; i < chunks; ++i) {
      std::int64_t rows = 0;
      for (const std::int64_t own : rows_per_rank)
        rows += (i + 1) * own / chunks - i * own / chunks;
      fits = fits && rows <= most;
    }
    if (fits) return chunks;
  }
}

std::string describe_options(const Sample& sample) {
  const Problem& p = sample.problem;
  std::ostringstream text;
  text << "seed " << sample.seed << ": " << name(p.dtype) << " rows " << sample.data.rows << "/"
       << p.max_rows << " hidden " << p.hidden << " vocab " << p.vocab << "/"
       << sample.data.vocab_padded << " " << name(p.layout) << " " << name(p.reduction)
       << " accumulation " << name(p.accumulation) << " chunking " << name(p.chunking.rule) << ":"
       << p.chunking.value << " keep " << p.keep_logits << " ignore " << p.ignore_index << " scale "
       << p.logit_scale << " cap " << p.softcap << " smoothing " << name(p.label_smoothing_form)
       << ":" << p.label_smoothing << " z-loss " << p.z_loss << " grads " << name(p.grad_hidden)
       << "," << name(p.grad_weight);
  const auto flag = [&](bool on, const char* label) {
    if (on) text << " " << label;
  };
  flag(p.bias, "bias");
  flag(p.normalizer, "normalizer");
  flag(p.class_weights, "class_weights");
  flag(p.soft_targets, "soft_targets");
  flag(p.entropy, "entropy");
  flag(sample.data.row_index.has_value(), "row_index");
  flag(!sample.data.token_weights.empty(), "token_weights");
  const auto list = [&](const char* label, const std::vector<std::int64_t>& values) {
    if (values.empty()) return;
    text << " " << label;
    for (const std::int64_t value : values) text << " " << value;
  };
  list("widths", p.shard_widths);
  list("split", sample.split);
  return text.str();
}

Sample with_logits(const std::vector<std::vector<double>>& logits,
                   const std::vector<std::int64_t>& targets, const Problem& options) {
  Sample sample;
  sample.problem = options;
  const auto rows = static_cast<std::int64_t>(logits.size());
  const auto vocab = static_cast<std::int64_t>(logits.front().size());
  sample.problem.max_rows = std::max(options.max_rows, rows);
  sample.problem.hidden = rows;
  if (options.vocab == 0) sample.problem.vocab = vocab;
  if (options.vocab != 0 && options.vocab != vocab) sample.problem.vocab_padded = vocab;
  sample.data.rows = rows;
  describe(sample);
  sample.data.targets = targets;
  sample.data.hidden.assign(static_cast<std::size_t>(rows * rows), 0);
  for (std::int64_t i = 0; i < rows; ++i)
    sample.data.hidden[static_cast<std::size_t>(i * rows + i)] = 1;
  for (std::size_t v = 0; v < static_cast<std::size_t>(vocab); ++v)
    for (const std::vector<double>& row : logits) sample.data.weight.push_back(row[v]);
  return sample;
}

}  // namespace shardloss::test
