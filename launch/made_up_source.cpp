#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "convert.hpp"
#include "source.hpp"

namespace shardloss::launch {
namespace {

/// splitmix64: any seed and position give a value of their own, so that every rank makes its part
/// of the same data.
std::uint64_t hash(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
  return value ^ value >> 31;
}

/// In [0, 1).
double uniform(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// Nearly normal with variance 1: the sum of four uniform values.
double normal(std::uint64_t bits) {
  double sum = 0;
  for (int k = 0; k < 4; ++k) sum += static_cast<double>(bits >> (16 * k) & 0xffff) * 0x1p-16;
  return (sum - 2) * std::sqrt(3.0);
}

class MadeUp final : public Source {
 public:
  MadeUp(const Options& options, std::vector<Shard> shards)
      : options_(options),
        problem_(complete_problem(options, nullptr)),
        shards_(std::move(shards)) {
    padded_ = problem_.vocab_padded;
    for (std::int64_t i = options.rows - 1; i >= 0; --i)
      if (hash(salt(Field::row_index, i)) % 2 == 0) index_.push_back(i);
  }

  bool has(Field field) const override;
  std::vector<std::int64_t> shape(Field field) const override;
  DType dtype(Field field) const override {
    return field == Field::targets || field == Field::row_index ? DType::int64 : DType::float64;
  }
  HostArray read(Field field, const Block& block, DType dtype) const override;

 private:
  std::uint64_t salt(Field field, std::int64_t position) const {
    return hash(options_.seed * 64 + static_cast<std::uint64_t>(field)) +
           static_cast<std::uint64_t>(position);
  }
  double value(Field field, std::int64_t row, std::int64_t column) const;
  struct Spread {
    double mean, deviation;
  };
  Spread spread_of(std::int64_t row) const;
  void fill_row(Field field, std::int64_t row, std::int64_t first_column,
                std::span<double> out) const;
  std::int64_t target(std::int64_t row) const;

  Options options_;
  Problem problem_;
  std::int64_t padded_ = 0;
  std::vector<Shard> shards_;
  std::vector<std::int64_t> index_;
};

bool MadeUp::has(Field field) const {
  const Options& o = options_;
  switch (field) {
    case Field::hidden:
    case Field::weight: return true;
    case Field::targets: return !o.soft_targets.given();
    case Field::soft_targets: return o.soft_targets.given();
    case Field::bias: return o.bias.given();
    case Field::token_weights: return o.token_weights.given();
    case Field::class_weights: return o.class_weights.given();
    case Field::row_index: return o.row_index.given();
    case Field::upstream: return o.upstream.given();
    case Field::upstream_lse: return o.upstream_lse.given();
    case Field::upstream_logprob: return o.upstream_logprob.given();
    case Field::upstream_entropy: return o.upstream_entropy.given();
    case Field::before_hidden:
    case Field::before_weight: return !o.accumulate_into.empty();
    case Field::before_bias: return !o.accumulate_into.empty() && o.bias.given();
  }
  return false;
}

std::vector<std::int64_t> MadeUp::shape(Field field) const {
  const std::int64_t rows = options_.rows, size = options_.hidden_size;
  switch (field) {
    case Field::hidden:
    case Field::before_hidden: return {rows, size};
    case Field::weight:
    case Field::before_weight: return {padded_, size};
    case Field::bias:
    case Field::before_bias: return {padded_};
    case Field::soft_targets: return {rows, padded_};
    case Field::class_weights: return {problem_.vocab};
    case Field::row_index: return {static_cast<std::int64_t>(index_.size())};
    case Field::upstream:
      if (problem_.reduction != Reduction::none) return {};
      return {rows};
    default: return {rows};
  }
}

/// Logits of a spread of about 3, whatever D; a shard's own scale and its own mean (the hidden
/// states' mean of 1/2 turns the weights' into the logits').
MadeUp::Spread MadeUp::spread_of(std::int64_t row) const {
  const auto size = static_cast<double>(options_.hidden_size);
  Spread spread{0, 3 / std::sqrt(size)};
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    if (row < shards_[r].first || row >= shards_[r].first + shards_[r].width) continue;
    const std::uint64_t own = hash(options_.seed + 77 * (r + 1));
    spread.mean = 2 * (4 * (uniform(own) - 0.5)) / size;
    spread.deviation = (0.5 + uniform(hash(own))) * 3 / std::sqrt(size);
  }
  return spread;
}

double MadeUp::value(Field field, std::int64_t row, std::int64_t column) const {
  const bool column_of_vocab = field == Field::soft_targets;
  if ((column_of_vocab && column >= problem_.vocab) ||
      (field == Field::bias && row >= problem_.vocab))
    return std::numeric_limits<double>::quiet_NaN();
  const std::int64_t width = column_of_vocab ? padded_ : options_.hidden_size;
  const std::uint64_t bits = hash(salt(field, row * width + column));
  switch (field) {
    case Field::hidden: return 0.5 + normal(bits);
    case Field::bias: return 0.5 * normal(bits);
    case Field::soft_targets: return 2 * uniform(bits) / static_cast<double>(problem_.vocab);
    case Field::token_weights: return bits % 8 == 0 ? 0 : 2 * uniform(hash(bits)) - 0.1;
    case Field::class_weights: return 0.25 + uniform(bits);
    case Field::before_hidden:
    case Field::before_weight:
    case Field::before_bias: return 0.125 * normal(bits);
    default: return normal(bits);  // upstream gradients
  }
}

std::int64_t MadeUp::target(std::int64_t row) const {
  constexpr std::int64_t out_of_range[] = {-1, 0, 7, 1LL << 31, -101};
  if (row < options_.invalid_targets) {
    const std::int64_t bad = out_of_range[row % 5];
    const std::int64_t value = bad < 0 ? bad : problem_.vocab + bad;
    return value == problem_.ignore_index ? problem_.vocab + 1 : value;
  }
  const std::uint64_t bits = hash(salt(Field::targets, row));
  // Ignored rows at both ends and here and there.
  const bool end = row == 0 || row == options_.rows - 1;
  if (options_.rows > 3 && (end || bits % 8 == 0)) return problem_.ignore_index;
  if (bits % 8 == 1 && !shards_.empty()) {
    const Shard& shard = shards_[hash(bits) % shards_.size()];
    if (shard.vocab > 0) return bits % 16 == 1 ? shard.first : shard.first + shard.vocab - 1;
  }
  return static_cast<std::int64_t>(hash(bits) % static_cast<std::uint64_t>(problem_.vocab));
}

/// A row of the weight is most of all that is made up: what its elements share is worked out once.
void MadeUp::fill_row(Field field, std::int64_t row, std::int64_t first_column,
                      std::span<double> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  if (field != Field::weight) {
    for (std::int64_t k = 0; k < count; ++k)
      out[static_cast<std::size_t>(k)] = value(field, row, first_column + k);
    return;
  }
  if (row >= problem_.vocab) {
    std::fill(out.begin(), out.end(), std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const Spread spread = spread_of(row);
  const std::uint64_t first = salt(field, row * options_.hidden_size + first_column);
  for (std::int64_t k = 0; k < count; ++k)
    out[static_cast<std::size_t>(k)] =
        spread.mean + spread.deviation * normal(hash(first + static_cast<std::uint64_t>(k)));
}

HostArray MadeUp::read(Field field, const Block& block, DType dtype) const {
  std::vector<std::int64_t> sizes = {block.rows};
  if (shape(field).size() == 2) sizes.push_back(block.columns);
  HostArray out(dtype, sizes);
  auto* to = static_cast<std::byte*>(out.mutable_data());
  const auto row_bytes = block.columns * static_cast<std::int64_t>(size_of(dtype));
#pragma omp parallel if (block.rows * block.columns > 1 << 16)
  {
    std::vector<double> made(static_cast<std::size_t>(block.columns));
#pragma omp for
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const std::int64_t row = block.first_row + i;
      if (is_floating(dtype)) {
        fill_row(field, row, block.first_column, made);
        convert(made.data(), DType::float64, to + i * row_bytes, dtype, block.columns);
      } else {
        const std::int64_t id =
            field == Field::targets ? target(row) : index_[static_cast<std::size_t>(row)];
        convert(&id, DType::int64, to + i * row_bytes, dtype, 1);
      }
    }
  }
  return out;
}

}  // namespace

std::unique_ptr<Source> make_up(const Options& options, const std::vector<Shard>& shards) {
  return std::make_unique<MadeUp>(options, shards);
}

bool is_made_up(const Options& options) {
  return options.hidden.kind != TensorOption::Kind::file &&
         options.weight.kind != TensorOption::Kind::file &&
         options.targets.kind != TensorOption::Kind::file;
}

}  // namespace shardloss::launch
