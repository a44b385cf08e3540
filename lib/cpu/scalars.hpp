/// \file
/// What the scalars and row_scratch buffers of a CPU workspace hold during a call.
#pragma once

#include <array>
#include <cstdint>

namespace shardloss::detail::cpu {

struct Scalars {
  double denominator;    ///< sum of t c_y over the ordinary rows; of the group once agreed
  double class_sum;      ///< sum of c_v over the vocabulary; V without class weights
  double class_most;     ///< largest |c_v|
  double cross_entropy;  ///< running sum over the rows combined so far
  double z_loss;         ///< likewise
  std::int64_t counted;  ///< ordinary rows among them
  std::array<double, 2>
      chunk_scale;  ///< of each slot: its coefficients times this are the true ones
};

}  // namespace shardloss::detail::cpu
