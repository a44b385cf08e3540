#include "source.hpp"

#include "shardloss/error.hpp"

namespace shardloss::launch {

HostArray Source::read_scalar(Field field, DType dtype) const {
  const HostArray one = read(field, {0, 1, 0, 1}, dtype);
  return HostArray(dtype, {}, 1, one.data(), std::make_shared<HostArray>(one));
}

HostArray Source::read_all(Field field, DType dtype) const {
  const auto sizes = shape(field);
  if (sizes.empty()) return read_scalar(field, dtype);
  return read(field, {0, sizes[0], 0, sizes.size() == 2 ? sizes[1] : 1}, dtype);
}

Problem complete_problem(const Options& options, const Source* source) {
  Problem problem = options.problem;
  if (source != nullptr && source->has(Field::hidden)) {
    problem.max_rows =
        source->shape(source->has(Field::row_index) ? Field::row_index : Field::hidden)[0];
    problem.hidden = source->shape(Field::hidden)[1];
    problem.vocab_padded = source->shape(Field::weight)[0];
    problem.dtype = is_made_up(options) ? DType::float32 : source->dtype(Field::hidden);
  } else {
    problem.max_rows = options.rows;
    problem.hidden = options.hidden_size;
    if (problem.vocab == 0) problem.vocab = problem.vocab_padded == 0 ? 211 : problem.vocab_padded;
  }
  if (problem.vocab == 0) problem.vocab = problem.vocab_padded;
  if (problem.vocab_padded == 0) problem.vocab_padded = problem.vocab;
  if (options.compute_dtype) problem.dtype = *options.compute_dtype;
  problem.bias = options.bias.given();
  problem.row_index = options.row_index.given();
  problem.normalizer = options.normalizer.has_value();
  problem.class_weights = options.class_weights.given();
  problem.soft_targets = options.soft_targets.given();
  problem.entropy = options.outputs == Answers::all || options.upstream_entropy.given();
  return problem;
}

}  // namespace shardloss::launch
