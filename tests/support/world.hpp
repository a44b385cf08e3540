/// \file
/// The ranks of a test: MPI_COMM_WORLD, or this process alone in a build without MPI.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "shardloss/communicator.hpp"

namespace shardloss::test {

int rank();
int ranks();

/// Where this rank's tensors live.
Device device();

/// A fresh group of all ranks for the device under test. The deadline is short: tests are small,
/// and a rank that waits for a failed one shall say so soon.
Communicator group(std::chrono::milliseconds deadline = std::chrono::seconds(20));

/// The values of all ranks, one rank after the other.
std::vector<double> gather(std::span<const double> mine);

/// The same over the ranks of `group`, in its numbering, by its own means: it may be a part of the
/// job, or number the ranks in another order.
std::vector<double> gather(const Communicator& group, std::span<const double> mine);

/// Whether `bytes` are the same on all ranks.
bool same_everywhere(std::span<const std::byte> bytes);
/// The same over the ranks of `group`.
bool same_everywhere(const Communicator& group, std::span<const std::byte> bytes);

/// The number of ranks on which `value` holds.
int count(bool value);

}  // namespace shardloss::test

/// Begins every test that computes on the device under test.
#define SHARDLOSS_NEEDS_DEVICE()                                                             \
  if (const std::string missing = shardloss::test::missing_device(shardloss::test::ranks()); \
      !missing.empty())                                                                      \
  GTEST_SKIP() << missing
