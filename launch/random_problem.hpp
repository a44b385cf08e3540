/// \file
/// Random problems for verify, as the command lines that repeat them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace shardloss::launch {

/// Options of `shardloss verify` that make problem number `index` of `seed` for `ranks` ranks:
/// sizes of 1, primes and odd tails, empty shards, and every option drawn by itself.
std::vector<std::string> random_problem(std::uint64_t seed, std::int64_t index, int ranks,
                                        DeviceKind device);

}  // namespace shardloss::launch
