/// \file
/// The headers by which ranks agree in a call, and what they say of invalid targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "../workspace.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/error.hpp"
#include "shardloss/plan.hpp"

namespace shardloss::detail::cpu {

/// This rank's header in the exchange buffer of a slot.
CallHeader& own_header(const Plan& plan, const WorkspaceMap& map, std::byte* workspace, int slot);

/// The headers that the exchange of a slot brought; throws where they disagree.
std::vector<CallHeader> agreed_headers(const Plan& plan, const WorkspaceMap& map,
                                       Transport& transport, std::byte* workspace, int slot);

/// The error of the group's first invalid target, the same on every rank.
std::optional<Error> invalid_target(std::span<const CallHeader> headers, std::int64_t vocab);

}  // namespace shardloss::detail::cpu
