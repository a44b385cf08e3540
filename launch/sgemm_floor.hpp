/// \file
/// The three matrix products of a pass alone: what the CPU pass is measured against.
#pragma once

#include <cstdint>
#include <vector>

#include "shardloss/plan.hpp"
#include "share.hpp"

namespace shardloss::launch {

/// cblas_sgemm of the shapes of each chunk, one after the other, with the same BLAS and threads:
/// logits [C, V_r], hidden gradient [C, D], weight gradient [V_r, D] added up over the chunks.
class SgemmFloor {
 public:
  SgemmFloor(const Share& share, const Plan& plan);

  void run();
  double flops() const;  ///< 2 per multiply-add

 private:
  std::int64_t rows_, width_, vocab_, chunk_rows_;
  std::vector<float> hidden_, weight_, logits_, grad_hidden_, grad_weight_;
};

}  // namespace shardloss::launch
