#include "share.hpp"

#include <algorithm>
#include <numeric>

#include "convert.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

std::string join(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

/// The index, checked: every row once and in range.
std::vector<std::int64_t> read_index(const Source& source, std::int64_t rows) {
  std::vector<std::int64_t> index = source.read_all(Field::row_index, DType::int64).integers();
  std::vector<std::int64_t> sorted = index;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= rows)
      refuse("row-index", std::to_string(sorted[i]), "rows from 0 to " + std::to_string(rows - 1));
    if (i > 0 && sorted[i] == sorted[i - 1])
      refuse("row-index", std::to_string(sorted[i]) + " twice", "every row once at most");
  }
  return index;
}

HostArray index_array(const std::vector<std::int64_t>& index) {
  HostArray out(DType::int64, {static_cast<std::int64_t>(index.size())});
  convert(index.data(), DType::int64, out.mutable_data(), DType::int64, out.elements());
  return out;
}

HostArray scalar_array(double value, DType dtype) {
  HostArray out(dtype, {});
  convert(&value, DType::float64, out.mutable_data(), dtype, 1);
  return out;
}

/// Integers and probabilities keep their dtype where the library takes it.
DType stored_or(const Source& source, Field field, DType dtype, DType otherwise) {
  return source.dtype(field) == dtype ? dtype : otherwise;
}

/// Takes the fields that a rank reads.
class Reader {
 public:
  Reader(const Source& source, Share& share) : source_(source), share_(share) {}

  void rows(Field field, DType dtype, HostArray& to) const {
    if (!source_.has(field)) return;
    const auto sizes = source_.shape(field);
    if (sizes.empty())
      to = source_.read_scalar(field, dtype);
    else
      to = source_.read(field, {share_.first_row, share_.rows, 0, sizes.size() == 2 ? sizes[1] : 1},
                        dtype);
  }
  void shard(Field field, DType dtype, HostArray& to) const {
    if (!source_.has(field)) return;
    const auto sizes = source_.shape(field);
    to = source_.read(field,
                      {share_.shard.first, share_.shard.width, 0, sizes.size() == 2 ? sizes[1] : 1},
                      dtype);
  }

 private:
  const Source& source_;
  Share& share_;
};

void read_gradients_before(const Reader& reader, Share& share) {
  const Problem& problem = share.problem;
  if (problem.grad_hidden != GradDType::none)
    reader.rows(Field::before_hidden, grad_dtype(problem.grad_hidden, problem.dtype),
                share.before_hidden);
  if (problem.grad_weight == GradDType::none) return;
  const DType dtype = grad_dtype(problem.grad_weight, problem.dtype);
  reader.shard(Field::before_weight, dtype, share.before_weight);
  if (problem.bias) reader.shard(Field::before_bias, dtype, share.before_bias);
}

void read_row_index(const Source& source, const std::vector<std::int64_t>& split, Share& share) {
  const auto index = read_index(source, share.total_rows);
  if (share.problem.layout == Layout::replicated) {
    share.row_index = index_array(index);
    return;
  }
  std::int64_t first = 0;
  for (std::size_t r = 0; r < split.size(); ++r) {
    std::vector<std::int64_t> own;
    for (const std::int64_t row : index)
      if (row >= first && row < first + split[r]) own.push_back(row - first);
    share.rows_per_rank[r] = static_cast<std::int64_t>(own.size());
    if (static_cast<int>(r) == share.rank) share.row_index = index_array(own);
    first += split[r];
  }
}

}  // namespace

DType real_of(const Problem& problem) {
  return problem.dtype == DType::float64 ? DType::float64 : DType::float32;
}

DType grad_dtype(GradDType choice, DType dtype) {
  return choice == GradDType::float32 && dtype != DType::float64 ? DType::float32 : dtype;
}

std::vector<std::int64_t> split_rows(const Options& options, std::int64_t rows, int ranks) {
  std::vector<std::int64_t> split = options.row_split;
  if (split.empty()) {
    for (int r = 0; r < ranks; ++r) split.push_back(rows / ranks + (r < rows % ranks ? 1 : 0));
    return split;
  }
  std::int64_t sum = 0;
  bool overflow = false;
  for (const std::int64_t count : split)
    overflow = overflow || __builtin_add_overflow(sum, count, &sum);
  if (overflow || static_cast<int>(split.size()) != ranks || sum != rows)
    refuse("row-split", join(split),
           std::to_string(ranks) + " counts that sum to " + std::to_string(rows));
  return split;
}

Share read_share(const Source& source, const Options& options, const Problem& problem, int rank,
                 int ranks) {
  Share share;
  share.problem = problem;
  share.rank = rank;
  share.shard = make_shards(problem, ranks)[static_cast<std::size_t>(rank)];
  share.total_rows = source.shape(Field::hidden)[0];
  share.rows = share.total_rows;
  std::vector<std::int64_t> split;
  if (problem.layout == Layout::row_sharded) {
    split = split_rows(options, share.total_rows, ranks);
    share.rows_per_rank = split;
    share.first_row = std::accumulate(split.begin(), split.begin() + rank, std::int64_t{0});
    share.rows = split[static_cast<std::size_t>(rank)];
  }
  const DType dtype = problem.dtype, real = real_of(problem);
  const Reader reader(source, share);
  reader.rows(Field::hidden, dtype, share.hidden);
  reader.shard(Field::weight, dtype, share.weight);
  reader.shard(Field::bias, dtype, share.bias);
  if (source.has(Field::targets))
    reader.rows(Field::targets, stored_or(source, Field::targets, DType::int32, DType::int64),
                share.targets);
  if (source.has(Field::soft_targets))
    // Its columns are the shard's, its rows all of the group's.
    share.soft_targets = source.read(Field::soft_targets,
                                     {0, share.total_rows, share.shard.first, share.shard.width},
                                     stored_or(source, Field::soft_targets, dtype, real));
  reader.rows(Field::token_weights, real, share.token_weights);
  if (source.has(Field::class_weights))
    share.class_weights = source.read_all(Field::class_weights, real);
  if (source.has(Field::row_index)) read_row_index(source, split, share);
  reader.rows(Field::upstream, real, share.upstream);
  reader.rows(Field::upstream_lse, real, share.upstream_lse);
  reader.rows(Field::upstream_logprob, real, share.upstream_logprob);
  reader.rows(Field::upstream_entropy, real, share.upstream_entropy);
  if (options.upstream_scale) share.upstream = scalar_array(*options.upstream_scale, real);
  if (options.normalizer) share.normalizer = scalar_array(*options.normalizer, real);
  read_gradients_before(reader, share);
  return share;
}

ReferenceProblem read_whole(const Source& source, const Options& options, const Problem& problem) {
  const DType dtype = problem.dtype, real = real_of(problem);
  const auto all = [&](Field field, DType as) {
    return source.has(field) ? source.read_all(field, as).doubles() : std::vector<double>{};
  };
  ReferenceProblem whole;
  whole.rows = source.shape(Field::hidden)[0];
  whole.hidden_size = problem.hidden;
  whole.vocab = problem.vocab;
  whole.vocab_padded = problem.vocab_padded;
  whole.hidden = all(Field::hidden, dtype);
  whole.weight = all(Field::weight, dtype);
  whole.bias = all(Field::bias, dtype);
  if (source.has(Field::targets))
    whole.targets = source.read_all(Field::targets, DType::int64).integers();
  if (source.has(Field::soft_targets))
    whole.soft_targets =
        all(Field::soft_targets, stored_or(source, Field::soft_targets, dtype, real));
  whole.token_weights = all(Field::token_weights, real);
  whole.class_weights = all(Field::class_weights, real);
  if (source.has(Field::row_index))
    whole.row_index = source.read_all(Field::row_index, DType::int64).integers();
  whole.upstream_loss = all(Field::upstream, real);
  whole.upstream_lse = all(Field::upstream_lse, real);
  whole.upstream_logprob = all(Field::upstream_logprob, real);
  whole.upstream_entropy = all(Field::upstream_entropy, real);
  if (options.upstream_scale) whole.upstream_loss = {rounded(*options.upstream_scale, real)};
  if (options.normalizer) whole.normalizer = rounded(*options.normalizer, real);
  whole.reduction = problem.reduction;
  whole.ignore_index = problem.ignore_index;
  whole.logit_scale = problem.logit_scale;
  whole.softcap = problem.softcap;
  whole.label_smoothing = problem.label_smoothing;
  whole.label_smoothing_form = problem.label_smoothing_form;
  whole.z_loss = problem.z_loss;
  return whole;
}

}  // namespace shardloss::launch
