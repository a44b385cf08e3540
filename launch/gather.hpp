/// \file
/// Whole outputs out of the ranks' parts, and whether copies are equal.
#pragma once

#include <string>
#include <vector>

#include "compare.hpp"
#include "job.hpp"

namespace shardloss::launch {

/// The bytes of every rank one after the other, on rank 0; nothing on the others. Collective.
std::vector<std::byte> gather(const Communicator& host, const void* data, std::size_t bytes);

/// The whole answer on rank 0, an empty one on the others. Collective.
Answer gather_answer(const Communicator& host, const std::vector<Piece>& pieces,
                     const Share& share);

/// The name of a replicated output whose bytes differ between ranks; empty: none. The same on every
/// rank. Collective.
std::string differing_output(const Communicator& host, const std::vector<Piece>& parts);

/// One number of all bytes of all outputs of this rank.
std::uint64_t fingerprint(const std::vector<Piece>& parts);

}  // namespace shardloss::launch
