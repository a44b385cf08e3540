/// \file
/// A hash over a sequence, by which ranks compare what they were given.
#pragma once

#include <cstdint>

namespace shardloss::detail {

/// Mixes one more value in: splitmix64's step and finaliser.
constexpr std::uint64_t mix(std::uint64_t hash, std::int64_t value) {
  hash = (hash + 0x9e3779b97f4a7c15ULL) ^ static_cast<std::uint64_t>(value);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

}  // namespace shardloss::detail
