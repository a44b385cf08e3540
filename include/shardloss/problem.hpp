/// \file
/// The description of one sharded linear cross-entropy, the same on every rank of the group.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shardloss/export.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss {

/// Who brings which rows. `replicated`: every rank passes the same hidden states and targets, the
/// hidden gradient comes back whole on every rank. `row_sharded`: rank r passes its own rows and
/// gets the gradient and the per-row outputs of those; the loss runs over the rows of all ranks.
enum class Layout : std::uint8_t { replicated, row_sharded };

/// How row losses become the loss: [N] as they are, their sum, or their sum over the denominator.
enum class Reduction : std::uint8_t { none, sum, mean };

/// Precision of what is carried between products.
///   accurate: logits chunk float32
///   balanced: logits chunk in the input dtype; dW and dX partial sums float32 (`automatic` is
///   this) compact:  logits chunk, dW across chunks, and dX partial sums in the input dtype
enum class Accumulation : std::uint8_t { automatic, accurate, balanced, compact };

/// PyTorch: (1 - a) nll + (a / V) sum_v (lse - z_v). Megatron and NeMo: the same with a V / (V -
/// 1).
enum class SmoothingForm : std::uint8_t { pytorch, megatron };

/// The dtype in which a gradient is written. `none`: the calls never ask for it, and it costs
/// nothing.
enum class GradDType : std::uint8_t { none, same, float32 };

/// How the number of rows of a chunk is found; always a pure function of the problem and the kind
/// of device, computed from the largest shard.
struct Chunking {
  /// What `value` says.
  enum class Rule : std::uint8_t {
    automatic,        ///< what measurements on that kind of device favour
    rows,             ///< `value` rows
    workspace_limit,  ///< the most rows whose workspace fits in `value` bytes
    aspect_ratio,     ///< PyTorch's: next_power_of_two(ceil(N / ceil(V / D))) / value
  };
  Rule rule = Rule::automatic;  ///< how
  std::int64_t value = 0;       ///< rows, bytes or divisor; not read by `automatic`
};

/// How matrix-product algorithms are chosen (CUDA). The plan lists the outcome.
enum class GemmChoice : std::uint8_t {
  heuristic,  ///< the cached one where this process has timed the shape, or the file named by
              ///< SHARDLOSS_GEMM_CACHE has it; else cublasLt's first
  tuned,      ///< the same, but what is not cached is timed at construction, in temporary buffers,
              ///< for some seconds a product
};

/// Everything that the ranks of a group must agree on; construction checks that they do.
///
/// Symbols of the documentation: N rows of a call, D hidden, V vocab, P ranks, V_r rows of the
/// weight on rank r, z logits after scale and cap.
///
/// Bounds, so that every count of a plan is within 63 bits: max_rows to 2^40; hidden, vocab and
/// vocab_padded to 2^31 - 1; the product of any two of max_rows, hidden and the padded vocabulary
/// to 2^56; ranks to 2^20; ranks times max_rows to 2^52. logit_scale, softcap and their quotient
/// are 0 or between 1e-30 and 1e30 in magnitude (float64: 1e-290 and 1e290), so that logits up to
/// 2^15 stay finite when scaled; z_loss is finite in float32 (float64: in float64).
struct Problem {
  std::int64_t max_rows = 0;  ///< the most rows a call may bring (row_sharded: all ranks together)
  std::int64_t hidden = 0;    ///< D
  std::int64_t vocab = 0;     ///< V, the true vocabulary: no column past it enters anything
  std::int64_t vocab_padded = 0;  ///< rows of the weight over all ranks, >= vocab; 0: vocab
  /// Rows of the weight on each rank, in rank order; may differ and be 0; sum vocab_padded.
  /// Empty: as even as can be, the first ranks get one more.
  std::vector<std::int64_t> shard_widths{};

  DType dtype = DType::float32;        ///< of hidden, weight and bias; float64 on the CPU only
  Layout layout = Layout::replicated;  ///< who brings which rows
  bool bias = false;                   ///< calls bring a bias shard [V_r]
  bool row_index = false;              ///< calls may bring an index of the rows to compute

  Reduction reduction = Reduction::mean;  ///< of the row losses, over the rows of the group
  std::int64_t ignore_index = -100;  ///< rows with this target count nowhere; may lie inside [0,
                                     ///< vocab); soft_targets: as it is
  bool normalizer = false;  ///< calls bring a scalar that divides in place of the denominator

  double logit_scale = 1.0;      ///< s: z = cap tanh(s u / cap), u = x . w + b
  double softcap = 0.0;          ///< cap; 0: none
  double label_smoothing = 0.0;  ///< a, in [0, 1]
  SmoothingForm label_smoothing_form = SmoothingForm::pytorch;  ///< which a
  double z_loss = 0.0;                                          ///< k of t k lse^2
  bool class_weights = false;  ///< calls bring float weights [V], whole on every rank
  bool soft_targets = false;   ///< calls bring probabilities [N, V_r] in place of targets
  bool entropy = false;  ///< calls may ask for the entropy, or bring an upstream gradient for it

  GradDType grad_hidden = GradDType::same;  ///< dtype of Gradients::hidden
  GradDType grad_weight = GradDType::same;  ///< and the bias gradient's

  Chunking chunking{};                                  ///< rows at a time
  Accumulation accumulation = Accumulation::automatic;  ///< precision between products
  std::int64_t keep_logits =
      0;  ///< rows whose logits forward keeps for backward; rounded up to chunks
  GemmChoice gemm = GemmChoice::heuristic;  ///< CUDA only
  bool throw_invalid_target = true;  ///< wait() and CPU calls throw; false: the row's NaN has to do
};

/// The enumerator's name, for messages and files.
SHARDLOSS_API std::string_view name(Layout) noexcept;
/// The enumerator's name, for messages and files.
SHARDLOSS_API std::string_view name(Reduction) noexcept;
/// The enumerator's name, for messages and files.
SHARDLOSS_API std::string_view name(Accumulation) noexcept;
/// The enumerator's name, for messages and files.
SHARDLOSS_API std::string_view name(SmoothingForm) noexcept;
/// The enumerator's name, for messages and files.
SHARDLOSS_API std::string_view name(GradDType) noexcept;
/// The enumerator's name, for messages and files.
SHARDLOSS_API std::string_view name(Chunking::Rule) noexcept;

}  // namespace shardloss
