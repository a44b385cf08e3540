/// \file
/// Where a problem's data come from: files, or made up. Both answer the same questions, so that the
/// ranks read their parts and the reference reads everything through one interface.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host_array.hpp"
#include "options.hpp"
#include "shardloss/plan.hpp"

namespace shardloss::launch {

/// What can be read.
enum class Field : std::uint8_t {
  hidden,         ///< [N, D]
  weight,         ///< [vocab_padded, D]
  bias,           ///< [vocab_padded]
  targets,        ///< [N], integers
  soft_targets,   ///< [N, vocab_padded]
  token_weights,  ///< [N]
  class_weights,  ///< [vocab]
  row_index,      ///< [n], integers
  upstream,       ///< [N] or one value, likewise down to upstream_entropy
  upstream_lse,
  upstream_logprob,
  upstream_entropy,
  before_hidden,  ///< [N, D]: what gradients are added to
  before_weight,  ///< [vocab_padded, D]
  before_bias,    ///< [vocab_padded]
};

/// A rectangle of a matrix; vectors have one column.
struct Block {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_column = 0, columns = 1;
};

class Source {
 public:
  virtual ~Source() = default;
  virtual bool has(Field field) const = 0;
  /// Sizes; empty for one value.
  virtual std::vector<std::int64_t> shape(Field field) const = 0;
  /// The dtype as stored; float64 and int64 for made-up data.
  virtual DType dtype(Field field) const = 0;
  /// A part, rounded to `dtype`: [rows, columns] for fields that are matrices, else [rows]. May
  /// stand for the file itself.
  virtual HostArray read(Field field, const Block& block, DType dtype) const = 0;

  /// One value.
  HostArray read_scalar(Field field, DType dtype) const;
  /// Everything.
  HostArray read_all(Field field, DType dtype) const;
};

/// The tensors that the options name. Throws Error(invalid_argument) where a file, name, dtype or
/// shape does not fit, naming both sides.
std::unique_ptr<Source> open_files(const Options& options);

/// Made-up data: logits spread by about 3, every shard of the vocabulary with its own mean and
/// scale, some rows ignored, some targets on the borders of shards. Padded columns are NaN.
std::unique_ptr<Source> make_up(const Options& options, const std::vector<Shard>& shards);

/// True where no file is named.
bool is_made_up(const Options& options);

/// The options' problem with sizes, dtype and announcements filled in. Without a source, from the
/// options' numbers.
Problem complete_problem(const Options& options, const Source* source);

}  // namespace shardloss::launch
