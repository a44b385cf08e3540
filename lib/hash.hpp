/// \file
/// A hash over a sequence, by which ranks compare what they were given.
#pragma once

#include <cstdint>

#include "host_device.hpp"

namespace shardloss::detail {

inline constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15ULL;  ///< 2^64 / phi, odd

/// Spreads a value over 64 bits: splitmix64's finaliser.
SHARDLOSS_HOST_DEVICE constexpr std::uint64_t spread(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

/// Mixes one more value in.
constexpr std::uint64_t mix(std::uint64_t hash, std::int64_t value) {
  return spread((hash + golden_ratio) ^ static_cast<std::uint64_t>(value));
}

}  // namespace shardloss::detail
