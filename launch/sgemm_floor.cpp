#include "sgemm_floor.hpp"

#include <cblas.h>

#include <algorithm>

#include "convert.hpp"

namespace shardloss::launch {
namespace {

std::vector<float> floats(const HostArray& array, std::int64_t rows) {
  std::vector<float> out(static_cast<std::size_t>(rows * array.columns()));
  convert(array.data(), array.dtype(), out.data(), DType::float32, rows * array.columns());
  return out;
}

}  // namespace

SgemmFloor::SgemmFloor(const Share& share, const Plan& plan)
    : rows_(share.problem.max_rows),
      width_(share.problem.hidden),
      vocab_(share.shard.vocab),
      chunk_rows_(plan.chunk_rows),
      // Row-sharded chunks hold rows of all ranks; any numbers do for those of the others.
      hidden_(static_cast<std::size_t>(rows_ * width_), 0.5f),
      weight_(floats(share.weight, vocab_)),
      logits_(static_cast<std::size_t>(std::min(chunk_rows_, rows_) * vocab_)),
      grad_hidden_(hidden_.size()),
      grad_weight_(weight_.size()) {
  const std::vector<float> own = floats(share.hidden, share.rows);
  std::copy(own.begin(), own.end(), hidden_.begin());
}

void SgemmFloor::run() {
  const auto v = static_cast<blasint>(vocab_), d = static_cast<blasint>(width_);
  if (v == 0) return;
  for (std::int64_t first = 0; first < rows_; first += chunk_rows_) {
    const auto c = static_cast<blasint>(std::min(chunk_rows_, rows_ - first));
    const float* x = hidden_.data() + first * width_;
    float* dx = grad_hidden_.data() + first * width_;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, c, v, d, 1, x, d, weight_.data(), d, 0,
                logits_.data(), v);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, c, d, v, 1e-6f, logits_.data(), v,
                weight_.data(), d, 0, dx, d);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, v, d, c, 1e-6f, logits_.data(), v, x, d,
                first == 0 ? 0.0f : 1.0f, grad_weight_.data(), d);
  }
}

double SgemmFloor::flops() const {
  return 6.0 * static_cast<double>(rows_) * static_cast<double>(width_) *
         static_cast<double>(vocab_);
}

}  // namespace shardloss::launch
