// The checks of a problem: each field's range, and what its options make of each other.
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "checker.hpp"
#include "shardloss/error.hpp"
#include "validate.hpp"

namespace shardloss::detail {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void validate_sizes(const Problem& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  SHARDLOSS_REQUIRE(p.max_rows >= 0, "max_rows is " + std::to_string(p.max_rows));
  SHARDLOSS_REQUIRE(p.hidden >= 1 && p.hidden <= most,
                    "hidden is " + std::to_string(p.hidden) + ", wanted 1 .. 2^31 - 1");
  SHARDLOSS_REQUIRE(p.vocab >= 1 && p.vocab <= most,
                    "vocab is " + std::to_string(p.vocab) + ", wanted 1 .. 2^31 - 1");
  SHARDLOSS_REQUIRE(p.vocab_padded == 0 || (p.vocab_padded >= p.vocab && p.vocab_padded <= most),
                    "vocab_padded is " + std::to_string(p.vocab_padded) + ", vocab is " +
                        std::to_string(p.vocab));
  SHARDLOSS_REQUIRE(p.keep_logits >= 0, "keep_logits is " + std::to_string(p.keep_logits));
  SHARDLOSS_REQUIRE(p.chunking.rule == Chunking::Rule::automatic || p.chunking.value >= 1,
                    "chunking " + std::string(name(p.chunking.rule)) + " has the value " +
                        std::to_string(p.chunking.value) + ", wanted at least 1");
}

void validate_objective(const Problem& p) {
  SHARDLOSS_REQUIRE(!(p.reduction == Reduction::none && p.normalizer),
                    "normalizer with reduction none: there is no sum that it could divide");
  SHARDLOSS_REQUIRE(std::isfinite(p.logit_scale), "logit_scale is " + number(p.logit_scale));
  SHARDLOSS_REQUIRE(std::isfinite(p.softcap) && p.softcap >= 0,
                    "softcap is " + number(p.softcap) + ", wanted >= 0");
  SHARDLOSS_REQUIRE(std::isfinite(p.z_loss), "z_loss is " + number(p.z_loss));
  SHARDLOSS_REQUIRE(p.label_smoothing >= 0 && p.label_smoothing <= 1,
                    "label_smoothing is " + number(p.label_smoothing) + ", wanted 0 .. 1");
  if (p.label_smoothing_form == SmoothingForm::megatron && p.label_smoothing > 0) {
    const double vocab = static_cast<double>(p.vocab);
    SHARDLOSS_REQUIRE(p.vocab > 1,
                      "label_smoothing_form megatron needs a vocab of at least 2, found 1");
    SHARDLOSS_REQUIRE(p.label_smoothing * vocab / (vocab - 1) <= 1,
                      "label_smoothing " + number(p.label_smoothing) +
                          " in megatron's form is more than 1 for vocab " +
                          std::to_string(p.vocab));
  }
}

}  // namespace

void validate_problem(const Problem& problem, DeviceKind device) {
  validate_sizes(problem);
  SHARDLOSS_REQUIRE(is_floating(problem.dtype), "dtype is " + std::string(name(problem.dtype)));
  SHARDLOSS_REQUIRE(problem.dtype != DType::float64 || device == DeviceKind::cpu,
                    "dtype is float64, which the CPU backend alone computes");
  validate_objective(problem);
}

}  // namespace shardloss::detail
