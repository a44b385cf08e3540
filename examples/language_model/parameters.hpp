/// \file
/// Trained matrices, and the AdamW step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "batches.hpp"

namespace language_model {

/// A matrix [rows, columns] of which this rank holds the rows `own`: all of them, or its shard.
struct Parameters {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Share own;
  bool sharded = false;  ///< else every rank holds the same
  std::vector<float> value;
  std::vector<float> gradient;
  std::vector<float> first_moment;
  std::vector<float> second_moment;

  /// The zero matrix.
  static Parameters whole(std::string name, std::int64_t rows, std::int64_t columns);
  static Parameters shard(std::string name, std::int64_t rows, std::int64_t columns, Share own);

  /// Uniform with that standard deviation. An element depends on the seed and its place in the
  /// whole matrix, so that shards of any width begin as the same matrix.
  void randomize(std::uint64_t seed, double deviation);
};

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< of matrices, not of biases
};

/// Step number `step` (from 1) at that learning rate; leaves the gradient zero.
void update(Parameters& parameters, const AdamW& adamw, std::int64_t step, double learning_rate);

}  // namespace language_model
