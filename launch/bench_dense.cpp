// `shardloss bench --dense`: the way that holds all logits, with the same BLAS, for comparison of
// memory and time. One process, float32, mean, hard targets.
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "bench.hpp"
#include "memory.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

/// Logits become their gradient in place; returns the mean loss.
double softmax_gradient(std::vector<float>& logits, const std::vector<std::int64_t>& targets,
                        std::int64_t vocab, std::int64_t ignore_index) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  const auto ordinary = [&](std::int64_t i) {
    return targets[static_cast<std::size_t>(i)] != ignore_index;
  };
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < rows; ++i) counted += ordinary(i) ? 1 : 0;
  const float factor = counted == 0 ? 0.0f : 1.0f / static_cast<float>(counted);
  double loss = 0;
#pragma omp parallel for reduction(+ : loss)
  for (std::int64_t i = 0; i < rows; ++i) {
    float* z = logits.data() + i * vocab;
    const float max = *std::max_element(z, z + vocab);
    double sum = 0;
    for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(z[v] - max);
    const float lse = max + static_cast<float>(std::log(sum));
    const std::int64_t y = targets[static_cast<std::size_t>(i)];
    const float g = ordinary(i) ? factor : 0.0f;
    if (ordinary(i)) loss += (lse - z[y]) * factor;
    for (std::int64_t v = 0; v < vocab; ++v) z[v] = g * std::exp(z[v] - lse);
    if (ordinary(i)) z[y] -= g;
  }
  return loss;
}

/// Every option of the data, the objective and the pass that the dense way does not have.
void check_options(const Options& o) {
  const Problem& p = o.problem;
  const auto only = [](bool fits, const char* option, const std::string& wanted) {
    if (!fits)
      throw Error(ErrorCode::invalid_argument,
                  "--" + std::string(option) + ": found --dense, wanted " + wanted);
  };
  only(o.device == DeviceKind::cpu, "device", "cpu");
  only(o.sweep.empty(), "sweep", "none: the dense way has no chunks");
  only(o.svg.empty(), "svg", "none: the dense way has no chunks");
  for (const TensorOption* one :
       {&o.soft_targets, &o.bias, &o.token_weights, &o.class_weights, &o.row_index, &o.upstream,
        &o.upstream_lse, &o.upstream_logprob, &o.upstream_entropy})
    only(!one->given(), one->option.c_str(), "none");
  only(!o.upstream_scale, "upstream-scale", "none");
  only(!o.normalizer, "normalizer", "none");
  only(o.invalid_targets == 0, "invalid-targets", "0");
  only(p.vocab_padded == 0 || p.vocab_padded == p.vocab, "vocab-padded", "that of --vocab");
  only(p.reduction == Reduction::mean, "reduction", "mean");
  only(p.label_smoothing == 0, "label-smoothing", "0");
  only(p.label_smoothing_form == SmoothingForm::pytorch, "label-smoothing-form", "pytorch");
  only(p.z_loss == 0, "z-loss", "0");
  only(p.softcap == 0, "softcap", "0");
  only(p.logit_scale == 1, "logit-scale", "1");
  only(p.layout == Layout::replicated, "layout", "replicated");
  only(p.shard_widths.empty(), "shards", "none");
  only(o.way == Way::fused, "way", "fused");
  only(p.chunking.rule == Chunking::Rule::automatic, "chunk-rows",
       "none: the dense way has no chunks");
  only(p.accumulation == Accumulation::automatic, "accumulation", "none");
  only(o.compute_dtype.value_or(DType::float32) == DType::float32, "compute-dtype", "float32");
  only(p.grad_hidden != GradDType::none, "grad-hidden-dtype", "float32");
  only(p.grad_weight != GradDType::none, "grad-weight-dtype", "float32");
  only(o.outputs == Answers::training, "outputs", "training");
  only(!o.tune, "tune", "none");
  only(o.delay_ms == 0, "delay", "0: the dense way has no collectives");
}

}  // namespace

void check_dense(const Options& options, int ranks) {
  if (ranks != 1)
    refuse("dense", std::to_string(ranks) + " ranks", "one: the dense way is not sharded");
  check_options(options);
}

Json bench_dense(World& world, const Options& options) {
  const Problem sizes = complete_problem(options, nullptr);
  Bytes bytes;
  bytes.add(sizes.max_rows, sizes.vocab, sizeof(float));
  for (int k = 0; k < 2; ++k) {  // each matrix and its gradient
    bytes.add(sizes.max_rows, sizes.hidden, sizeof(float));
    bytes.add(sizes.vocab, sizes.hidden, sizeof(float));
  }
  check_memory(bytes);
  const BenchData data = make_bench_data(world, options);
  const Problem& problem = data.share.problem;
  const std::int64_t n = data.share.rows, v = problem.vocab, d = problem.hidden;
  const auto* x = static_cast<const float*>(data.share.hidden.data());
  const auto* w = static_cast<const float*>(data.share.weight.data());
  const auto targets = data.share.targets.integers();
  std::vector<float> logits(static_cast<std::size_t>(n * v));
  std::vector<float> grad_hidden(static_cast<std::size_t>(n * d));
  std::vector<float> grad_weight(static_cast<std::size_t>(v * d));
  const auto rows = static_cast<blasint>(n), vocab = static_cast<blasint>(v),
             size = static_cast<blasint>(d);
  Times times;
  double loss = 0;
  for (std::int64_t i = -options.warmup; i < options.iterations; ++i) {
    const auto start = std::chrono::steady_clock::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, vocab, size, 1, x, size, w, size, 0,
                logits.data(), vocab);
    loss = softmax_gradient(logits, targets, v, problem.ignore_index);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, size, vocab, 1, logits.data(),
                vocab, w, size, 0, grad_hidden.data(), size);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, vocab, size, rows, 1, logits.data(), vocab,
                x, size, 0, grad_weight.data(), size);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (i >= 0) times.seconds.push_back(seconds.count());
  }
  const double flops =
      6.0 * static_cast<double>(n) * static_cast<double>(v) * static_cast<double>(d);
  const Json row = {{"problem", "N" + std::to_string(n) + "_D" + std::to_string(d) + "_V" +
                                    std::to_string(v) + "_dense"},
                    {"device", "cpu"},
                    {"loss", loss},
                    {"pass", timing_json(times, flops, n)},
                    {"memory", {{"resident_bytes", peak_resident_bytes()}}}};
  std::printf("%-36s pass %9.2f ms (p95 %9.2f)  loss %.6f  resident at most %.1f MiB\n",
              row["problem"].get<std::string>().c_str(), row["pass"]["median_ms"].get<double>(),
              row["pass"]["p95_ms"].get<double>(), loss,
              static_cast<double>(peak_resident_bytes()) / (1 << 20));
  return row;
}

}  // namespace shardloss::launch
