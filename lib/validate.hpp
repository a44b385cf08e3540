/// \file
/// All argument checks of the library, in one place. Messages carry both sides.
#pragma once

#include "call.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::detail {

/// Throws Error(invalid_argument) naming the field and its value.
void validate_problem(const Problem& problem, DeviceKind device);

/// Checks that the Saved of a call is there and made by the Loss whose Instance::id is `loss`.
void check_saved(const Call& call, std::uint64_t loss, Device device);

/// Checks the tensors of a call against the problem and each other, and fills in the call's row
/// counts, agreement words and chunks. Throws Error(invalid_argument).
void validate_call(const Problem& problem, const Plan& plan, Device device, Call& call);

/// The same for a count of ordinary rows into `total`.
void validate_denominator(const Problem& problem, Device device, const Tensor& total, Call& call);

/// The same for an embedding call.
void validate_embed_call(const Problem& problem, const Plan& plan, Device device,
                         std::span<const std::int64_t> rows_per_rank, EmbedCall& call);

}  // namespace shardloss::detail
