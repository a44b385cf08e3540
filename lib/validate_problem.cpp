// The checks of a problem: each field's range, and what its options make of each other.
#include <cmath>
#include <limits>
#include <string>

#include "checker.hpp"
#include "number.hpp"
#include "objective.hpp"
#include "shardloss/error.hpp"
#include "validate.hpp"

namespace shardloss::detail {
namespace {

/// A size and its field.
struct Size {
  const char* name;
  std::int64_t value;
};

// A plan sums some ten buffers of two sizes and at most 8 bytes an element: within 63 bits.
void validate_product(const Size& a, const Size& b) {
  constexpr std::int64_t most = std::int64_t{1} << 56;
  SHARDLOSS_REQUIRE(a.value <= most / b.value,
                    std::string(a.name) + " x " + b.name + " is " + std::to_string(a.value) +
                        " x " + std::to_string(b.value) + ", wanted at most 2^56 elements");
}

void validate_sizes(const Problem& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  SHARDLOSS_REQUIRE(p.max_rows >= 0 && p.max_rows <= std::int64_t{1} << 40,
                    "max_rows is " + std::to_string(p.max_rows) + ", wanted 0 .. 2^40");
  SHARDLOSS_REQUIRE(p.hidden >= 1 && p.hidden <= most,
                    "hidden is " + std::to_string(p.hidden) + ", wanted 1 .. 2^31 - 1");
  SHARDLOSS_REQUIRE(p.vocab >= 1 && p.vocab <= most,
                    "vocab is " + std::to_string(p.vocab) + ", wanted 1 .. 2^31 - 1");
  SHARDLOSS_REQUIRE(p.vocab_padded == 0 || (p.vocab_padded >= p.vocab && p.vocab_padded <= most),
                    "vocab_padded is " + std::to_string(p.vocab_padded) + ", vocab is " +
                        std::to_string(p.vocab) + ", wanted 0 or vocab .. 2^31 - 1");
  const Size rows{"max_rows", p.max_rows};
  const Size hidden{"hidden", p.hidden};
  const Size vocab =
      p.vocab_padded == 0 ? Size{"vocab", p.vocab} : Size{"vocab_padded", p.vocab_padded};
  validate_product(rows, hidden);
  validate_product(rows, vocab);
  validate_product(vocab, hidden);
  SHARDLOSS_REQUIRE(p.keep_logits >= 0, "keep_logits is " + std::to_string(p.keep_logits));
  SHARDLOSS_REQUIRE(p.chunking.rule == Chunking::Rule::automatic || p.chunking.value >= 1,
                    "chunking " + std::string(name(p.chunking.rule)) + " has the value " +
                        std::to_string(p.chunking.value) + ", wanted at least 1");
}

// The objective is computed in float32, or in float64 where the problem is.
void validate_number(const Problem& p, const char* name, double value) {
  const bool wide = p.dtype == DType::float64;
  SHARDLOSS_REQUIRE(std::isfinite(value), std::string(name) + " is " + number(value));
  SHARDLOSS_REQUIRE(wide || std::abs(value) <= std::numeric_limits<float>::max(),
                    std::string(name) + " is " + number(value) + ", more than float32 holds");
}

// Logits and coefficients, of up to about 2^15, are multiplied and divided by a scale or a cap.
void validate_factor(const Problem& p, const char* name, double value) {
  const bool wide = p.dtype == DType::float64;
  const double least = wide ? 1e-290 : 1e-30, most = wide ? 1e290 : 1e30;
  const double magnitude = std::abs(value);
  SHARDLOSS_REQUIRE(value == 0 || (magnitude >= least && magnitude <= most),
                    std::string(name) + " is " + number(value) + ", wanted 0 or " + number(least) +
                        " .. " + number(most) + " in magnitude");
}

void validate_objective(const Problem& p) {
  SHARDLOSS_REQUIRE(!p.soft_targets || p.ignore_index == Problem{}.ignore_index,
                    "ignore_index is " + std::to_string(p.ignore_index) +
                        " with soft_targets, which ignore no row: weigh it 0");
  SHARDLOSS_REQUIRE(!(p.reduction == Reduction::none && p.normalizer),
                    "normalizer with reduction none: there is no sum that it could divide");
  validate_factor(p, "logit_scale", p.logit_scale);
  validate_factor(p, "softcap", p.softcap);
  if (p.softcap != 0) validate_factor(p, "logit_scale / softcap", p.logit_scale / p.softcap);
  SHARDLOSS_REQUIRE(p.softcap >= 0, "softcap is " + number(p.softcap) + ", wanted >= 0");
  validate_number(p, "z_loss", p.z_loss);
  SHARDLOSS_REQUIRE(p.label_smoothing >= 0 && p.label_smoothing <= 1,
                    "label_smoothing is " + number(p.label_smoothing) + ", wanted 0 .. 1");
  if (p.label_smoothing_form == SmoothingForm::megatron && p.label_smoothing > 0) {
    SHARDLOSS_REQUIRE(p.vocab > 1,
                      "label_smoothing_form megatron needs a vocab of at least 2, found 1");
    SHARDLOSS_REQUIRE(pytorch_smoothing(p) <= 1,
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
