/// \file
/// The small fixed-size records that steps hand to each other and ranks send each other. Plain
/// data, the same on host and device; `Real` is float, or double for float64 problems.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "host_device.hpp"

namespace shardloss::detail {

template <class Real>
inline constexpr Real minus_infinity = -std::numeric_limits<Real>::infinity();
template <class Real>
inline constexpr Real quiet_nan = std::numeric_limits<Real>::quiet_NaN();

enum class Operation : std::uint64_t {
  forward = 1,
  backward,
  forward_backward,
  embed,
  embed_backward
};

/// What ranks must agree on in a call, sent in front of every statistics exchange, or alone where a
/// call opens without statistics and where it closes. The first `agreed_words` 64-bit words must be
/// equal on all ranks; the rest is summed or looked at.
struct CallHeader {
  // agreed, in the order in which a disagreement is reported
  std::uint64_t verdict;    ///< 0; or why this rank goes no further: refused, given_up
  std::uint64_t object;     ///< rank 0's number of the Loss or embedding, from the handshake
  std::uint64_t call;       ///< how many calls this object has seen
  std::uint64_t operation;  ///< Operation
  std::uint64_t chunk;      ///< 0-based, of this exchange; `closing`
  std::uint64_t rows;       ///< rows of the call (replicated); or a hash of rows_per_rank, marked
  std::uint64_t outputs;    ///< bit mask of the requested outputs and reduced gradients
  std::uint64_t saved;      ///< backward: number of the forward that filled its Saved
  std::uint64_t targets;    ///< replicated: hash of targets and row index; row_sharded: 0
  // each rank's own share
  double denominator;          ///< sum of t c_y over this rank's ordinary rows
  std::int64_t counted;        ///< their number
  std::int64_t invalid;        ///< number of invalid targets; -1: the row index points outside
  std::int64_t invalid_row;    ///< the lowest row of them, in the group's numbering; or the place
  std::int64_t invalid_value;  ///< and its target; or the entry
  std::array<std::uint64_t, 2> reserved;
};
static_assert(sizeof(CallHeader) == 128);

inline constexpr int agreed_words = 9;

/// Verdicts: this rank's arguments are invalid (CPU; on CUDA such a rank throws by itself, and its
/// peers end by their deadline); its host has aborted the call.
inline constexpr std::uint64_t refused = 1;
inline constexpr std::uint64_t given_up = 2;

/// The bit of CallHeader::rows that says that the others are a hash: no count is so large.
inline constexpr std::uint64_t hashed_rows = std::uint64_t{1} << 63;

/// The chunk of the exchange at the end of a call.
inline constexpr std::uint64_t closing = ~std::uint64_t{0};

/// On a device, what the shares of blocks take at the beginning of Buffer::row_scratch; behind it
/// lies the bias in the dtype of the logits.
inline constexpr std::size_t shares_bytes = 65536;

/// The names of the agreed words, for messages.
inline constexpr std::array<const char*, agreed_words> agreed_names = {
    "arguments",         "object",        "call number", "operation", "chunk", "rows",
    "requested outputs", "saved forward", "targets"};

/// One row of a chunk as the caller gave it.
template <class Real>
struct RowInput {
  std::int64_t target;  ///< global id; soft targets: 0
  std::int64_t row;     ///< in the group's numbering: rank r's first row is the sum of those before
  Real weight;          ///< t
  Real upstream_loss;
  Real upstream_lse;
  Real upstream_logprob;
  Real upstream_entropy;
  Real reserved;
};

/// What one shard knows of a row; ranks gather these, and each combines them in rank order: bitwise
/// the same everywhere, and NaN travels (it would not through NCCL's MAX).
template <class Real>
struct RowStatistics {
  Real max;             ///< m: maximum of z over the shard's true columns; -inf for none
  Real sum_exp;         ///< sum exp(z - m); 0 when m = -inf
  Real target_logit;    ///< z_y where this shard owns y, else 0
  Real centered_sum;    ///< entropy: sum exp(z - m) (z - m)
  Real weighted_sum;    ///< smoothing: sum c_v z_v; soft targets: sum c_v q'_v z_v
  Real target_mass;     ///< soft targets: sum c_v q'_v
  std::int64_t argmax;  ///< global id of the first maximum; where asked
};

/// What backward needs of a row.
template <class Real>
struct SavedRow {
  Real max;            ///< M over the vocabulary
  Real log_sum;        ///< log sum exp(z - M); lse = M + log_sum, kept apart for large M
  Real centered_mean;  ///< E_p[z] - M, where entropy is asked
  Real target_mass;    ///< soft targets: sum c_v q'_v

  SHARDLOSS_HOST_DEVICE double lse() const { return static_cast<double>(max) + log_sum; }
};

/// A chunk row's logit gradient, in the form of OBJECTIVE.md:
///
///   du_v = (p_v (A + G (z_v - M)) + B [v == y] + C_v) (1 - (z_v / cap)^2)
///
/// (s is in A, G, B and C here) with p_v = exp(z_v - M - log_sum) and C_v = C c_v (smoothing) or C
/// c_v q'_v (soft targets); z is centred at M, so that nothing large cancels. All four are divided
/// by the chunk's power of two: on the CPU as they are kept here, on CUDA (float16) as they are
/// read.
template <class Real>
struct RowCoefficients {
  Real max;
  Real log_sum;
  Real a;
  Real g;
  Real b;
  Real c;
  std::int64_t column;  ///< of the target in this shard, or -1
  std::int64_t row;     ///< RowInput::row
};

}  // namespace shardloss::detail
