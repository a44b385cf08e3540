/// \file
/// That ranks agree: once at construction, and in every call.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "records.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/error.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::detail {

/// What the headers of a call, in rank order, disagree in. A refused argument (of another rank) is
/// Error(invalid_argument), a call that a rank gave up a fatal Error(peer); targets alone are a
/// mismatch that leaves the communicator good, everything else is a fatal mismatch.
std::optional<Error> disagreement(std::span<const CallHeader> headers);

/// The same from the one field that a device found: `field` is 1 + its place among agreed_names.
Error disagreement(std::uint32_t field, std::uint32_t other_rank, std::uint64_t value,
                   std::uint64_t other_value);

/// What a target, or an input of the embedding, outside the vocabulary comes to.
Error invalid_id(std::int64_t row, std::int64_t id, std::int64_t vocab);

/// The handshake of a construction: one bounded host exchange of a fixed-size record with every
/// field of the problem and this rank's own verdict (an error met while preparing, or none).
/// Afterwards either every rank throws the same Error, naming field, values and ranks, or none
/// does. `number` is unlike that of any other object of this process; rank 0's is returned, by
/// which all ranks know the object.
std::uint64_t handshake(Transport& transport, const char* what, const Problem& problem,
                        Device device, const std::optional<Error>& verdict, std::uint64_t number);

}  // namespace shardloss::detail
