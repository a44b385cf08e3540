#include <algorithm>
#include <map>
#include <string>

#include "convert.hpp"
#include "safetensors.hpp"
#include "shardloss/error.hpp"
#include "source.hpp"

namespace shardloss::launch {
namespace {

using files::Checkpoint;
using files::TensorEntry;

/// Converted a piece at a time, so that a file's pages need not stay beside what is made of them.
constexpr std::int64_t piece_bytes = 8 << 20;

bool is_integer_field(Field field) { return field == Field::targets || field == Field::row_index; }

/// A field's tensor, and the option that named it.
struct Named {
  std::string label;
  std::shared_ptr<Checkpoint> checkpoint;
  TensorEntry entry;
};

class FileSource final : public Source {
 public:
  explicit FileSource(const Options& options);

  bool has(Field field) const override { return tensors_.count(field) != 0; }
  std::vector<std::int64_t> shape(Field field) const override {
    const auto& shape = tensors_.at(field).entry.shape;
    return shape == std::vector<std::int64_t>{1} && is_upstream(field) ? std::vector<std::int64_t>{}
                                                                       : shape;
  }
  DType dtype(Field field) const override { return *files::dtype_of(tensors_.at(field).entry); }
  HostArray read(Field field, const Block& block, DType dtype) const override;

 private:
  static bool is_upstream(Field field) {
    return field >= Field::upstream && field <= Field::upstream_entropy;
  }
  [[noreturn]] static void refuse_tensor(const Named& named, const std::string& wanted);
  void add(Field field, const TensorOption& option);
  void add_before(Field field, const std::string& path, const std::string& name);
  void check_dtype(Field field) const;
  void check_shape(Field field, const std::vector<std::int64_t>& wanted) const;
  void check_upstream(Field field, std::int64_t rows, bool per_row) const;
  void check_shapes(const Options& options) const;

  std::map<std::string, std::shared_ptr<Checkpoint>> open_;
  std::map<Field, Named> tensors_;
};

void FileSource::refuse_tensor(const Named& named, const std::string& wanted) {
  throw Error(ErrorCode::invalid_argument,
              named.label + ": found " + files::describe(named.entry) + ", wanted " + wanted);
}

void FileSource::add(Field field, const TensorOption& option) {
  if (!option.given()) return;
  auto& checkpoint = open_[option.file];
  if (!checkpoint) checkpoint = std::make_shared<Checkpoint>(option.file);
  tensors_[field] = {"--" + option.option + " " + option.file + ":" + option.name, checkpoint,
                     checkpoint->tensor(option.name)};
  check_dtype(field);
}

void FileSource::add_before(Field field, const std::string& path, const std::string& name) {
  auto& checkpoint = open_[path];
  if (!checkpoint) checkpoint = std::make_shared<Checkpoint>(path);
  if (!checkpoint->has(name)) return;
  TensorOption option;
  option.kind = TensorOption::Kind::file;
  option.option = "accumulate-into";
  option.file = path;
  option.name = name;
  add(field, option);
}

FileSource::FileSource(const Options& o) {
  add(Field::hidden, o.hidden);
  add(Field::weight, o.weight);
  add(Field::bias, o.bias);
  add(Field::targets, o.targets);
  add(Field::soft_targets, o.soft_targets);
  add(Field::token_weights, o.token_weights);
  add(Field::class_weights, o.class_weights);
  add(Field::row_index, o.row_index);
  add(Field::upstream, o.upstream);
  add(Field::upstream_lse, o.upstream_lse);
  add(Field::upstream_logprob, o.upstream_logprob);
  add(Field::upstream_entropy, o.upstream_entropy);
  if (!o.accumulate_into.empty()) {
    const bool hidden = o.problem.grad_hidden != GradDType::none;
    const bool weight = o.problem.grad_weight != GradDType::none;
    if (hidden) add_before(Field::before_hidden, o.accumulate_into, "grad_hidden");
    if (weight) add_before(Field::before_weight, o.accumulate_into, "grad_weight");
    if (weight && o.bias.given()) add_before(Field::before_bias, o.accumulate_into, "grad_bias");
    if (!has(Field::before_hidden) && !has(Field::before_weight) && !has(Field::before_bias))
      throw Error(ErrorCode::invalid_argument,
                  "--accumulate-into " + o.accumulate_into +
                      ": found none of the gradients that are computed (grad_hidden, grad_weight, "
                      "grad_bias), wanted some");
  }
  check_shapes(o);
}

void FileSource::check_dtype(Field field) const {
  const Named& named = tensors_.at(field);
  const auto dtype = files::dtype_of(named.entry);
  if (is_integer_field(field)) {
    if (dtype != DType::int64 && dtype != DType::int32) refuse_tensor(named, "I64 or I32");
  } else if (!dtype || !is_floating(*dtype)) {
    refuse_tensor(named, "F64, F32, BF16 or F16");
  }
}

void FileSource::check_shape(Field field, const std::vector<std::int64_t>& wanted) const {
  if (has(field) && tensors_.at(field).entry.shape != wanted)
    refuse_tensor(tensors_.at(field), files::describe(wanted));
}

void FileSource::check_upstream(Field field, std::int64_t rows, bool per_row) const {
  if (!has(field) || shape(field).empty()) return;
  if (!per_row) refuse_tensor(tensors_.at(field), "one value (per row only with --reduction none)");
  check_shape(field, {rows});
}

void FileSource::check_shapes(const Options& options) const {
  const auto matrix = [&](Field field, const char* wanted) {
    const Named& named = tensors_.at(field);
    if (named.entry.shape.size() != 2) refuse_tensor(named, wanted);
    return named.entry.shape;
  };
  const auto hidden = matrix(Field::hidden, "a matrix [N, D]");
  const auto weight = matrix(Field::weight, "a matrix [vocab_padded, D]");
  const std::int64_t rows = hidden[0], size = hidden[1], padded = weight[0];
  if (weight[1] != size)
    refuse_tensor(tensors_.at(Field::weight), "[vocab_padded, " + std::to_string(size) +
                                                  "] as --hidden has " + std::to_string(size) +
                                                  " columns");
  const std::int64_t vocab = options.problem.vocab == 0 ? padded : options.problem.vocab;
  if (vocab > padded)
    refuse_tensor(tensors_.at(Field::weight),
                  "at least the " + std::to_string(vocab) + " rows of --vocab");
  check_shape(Field::bias, {padded});
  check_shape(Field::targets, {rows});
  check_shape(Field::soft_targets, {rows, padded});
  check_shape(Field::token_weights, {rows});
  check_shape(Field::class_weights, {vocab});
  if (has(Field::row_index) && shape(Field::row_index).size() != 1)
    refuse_tensor(tensors_.at(Field::row_index), "a vector");
  check_upstream(Field::upstream, rows, options.problem.reduction == Reduction::none);
  check_upstream(Field::upstream_lse, rows, true);
  check_upstream(Field::upstream_logprob, rows, true);
  check_upstream(Field::upstream_entropy, rows, true);
  check_shape(Field::before_hidden, {rows, size});
  check_shape(Field::before_weight, {padded, size});
  check_shape(Field::before_bias, {padded});
}

HostArray FileSource::read(Field field, const Block& block, DType dtype) const {
  const Named& named = tensors_.at(field);
  const DType stored = this->dtype(field);
  const auto element = static_cast<std::int64_t>(size_of(stored));
  const std::int64_t width = named.entry.shape.size() == 2 ? named.entry.shape[1] : 1;
  const std::byte* from =
      named.entry.bytes.data() + (block.first_row * width + block.first_column) * element;
  std::vector<std::int64_t> shape = {block.rows};
  if (named.entry.shape.size() == 2) shape.push_back(block.columns);

  const bool aligned =
      reinterpret_cast<std::uintptr_t>(from) % static_cast<std::uintptr_t>(element) == 0;
  if (stored == dtype && aligned && block.rows * block.columns > 0)
    return HostArray(dtype, shape, width, from, named.checkpoint);

  HostArray out(dtype, shape);
  auto* to = static_cast<std::byte*>(out.mutable_data());
  const std::int64_t step =
      std::max<std::int64_t>(1, piece_bytes / std::max<std::int64_t>(1, width * element));
  for (std::int64_t first = 0; first < block.rows; first += step) {
    const std::int64_t rows = std::min(step, block.rows - first);
    for (std::int64_t i = first; i < first + rows; ++i)
      convert(from + i * width * element, stored,
              to + i * block.columns * static_cast<std::int64_t>(size_of(dtype)), dtype,
              block.columns);
    named.checkpoint->release(
        {from + first * width * element,
         static_cast<std::size_t>(((rows - 1) * width + block.columns) * element)});
  }
  return out;
}

}  // namespace

std::unique_ptr<Source> open_files(const Options& options) {
  return std::make_unique<FileSource>(options);
}

}  // namespace shardloss::launch
