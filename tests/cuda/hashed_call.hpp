/// \file
/// A Loss with tensors too large for the host: made from hashes, read back in parts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "call.hpp"
#include "device_memory.hpp"
#include "exact_rows.hpp"
#include "hashed.hpp"
#include "shardloss/loss.hpp"

namespace shardloss::test {

/// The whole data of one call of Problem::max_rows rows.
struct HashedData {
  HashedMatrix hidden;
  HashedMatrix weight;
  std::vector<std::int64_t> targets;    ///< of all rows of the group
  std::vector<std::int64_t> row_index;  ///< replicated only; empty: all rows
};

/// This rank's part of a call. row_sharded: ranks bring rows as even as can be.
class HashedCall {
 public:
  HashedCall(const Communicator& communicator, const Problem& problem, const HashedData& data);

  /// Poisons all results, runs, waits.
  void run(Way way);

  const Loss& loss() const { return loss_; }
  std::int64_t first_row() const { return first_row_; }
  std::int64_t rows() const { return rows_; }

  double mean() const;
  /// Of all rows of this rank.
  std::vector<double> row_loss() const;
  std::vector<double> lse() const;
  /// Columns of dX's row, counted in the group, which this rank has.
  std::vector<double> grad_hidden(std::int64_t row, Columns columns) const;
  /// Columns of dW's row v, empty where another rank owns it.
  std::vector<double> grad_weight(std::int64_t v, Columns columns) const;
  /// All that this rank has of them.
  std::vector<double> grad_hidden() const;
  std::vector<double> grad_weight() const;
  /// All results of this rank.
  std::vector<std::byte> bytes() const;

 private:
  void poison();
  std::vector<double> read(const launch::DeviceMemory& memory, DType dtype, std::int64_t first,
                           std::int64_t count) const;

  Problem problem_;
  Loss loss_;
  std::int64_t first_row_ = 0;
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> rows_per_rank_;
  DType hidden_grad_dtype_;
  DType weight_grad_dtype_;
  launch::DeviceMemory hidden_, weight_, targets_, row_index_;
  launch::DeviceMemory mean_, row_loss_, lse_, grad_hidden_, grad_weight_;
  Inputs inputs_;
  Outputs outputs_;
  Gradients gradients_;
  std::optional<Saved> saved_;
};

}  // namespace shardloss::test
