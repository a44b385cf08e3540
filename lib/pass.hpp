/// \file
/// The order of the steps of a pass: the only place that states it.
#pragma once

#include "backend.hpp"

namespace shardloss::detail {

/// Runs one validated call from its first step to its last. On the CPU it returns when the outputs
/// are complete, on CUDA when everything is enqueued. Throws what the backend and the transport
/// throw; on the CPU every rank of the group throws then.
void run_pass(const Call& call, const Plan& plan, const WorkspaceMap& map, Backend& backend,
              Transport& transport);

/// The same for an embedding call.
void run_embedding(const EmbedCall& call, const Plan& plan, const WorkspaceMap& map,
                   Backend& backend, Transport& transport);

/// Gathers `bytes` bytes of each rank in place.
Ticket all_gather_equal(Transport& transport, void* data, std::int64_t bytes, Stream stream);

/// The last exchange of a call, where closes(plan): all ranks say what became of theirs.
void close_call(const WorkspaceMap& map, Backend& backend, Transport& transport,
                std::byte* workspace, Stream stream);

/// CPU: takes part in the first exchange of a call whose arguments this rank refuses, so that the
/// other ranks learn of it at once and the communicator stays good.
void refuse_call(std::uint64_t number, const WorkspaceMap& map, Transport& transport);

}  // namespace shardloss::detail
