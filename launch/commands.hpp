/// \file
/// The commands of `shardloss`. Each returns its exit status; faults that end all ranks come as
/// Refusal or Error.
#pragma once

#include "options.hpp"
#include "world.hpp"

namespace shardloss::launch {

/// Exit statuses.
enum Status : int {
  status_good = 0,
  status_wrong = 1,    ///< computed, but a target is invalid, or a result is past its tolerance
  status_refused = 2,  ///< options or inputs do not fit
  status_lost = 3,     ///< a rank or device was lost
};

int run_command(World& world, const Options& options);
int verify_command(World& world, const Options& options);
int plan_command(World& world, const Options& options);
int bench_command(World& world, const Options& options);

/// The device of this process.
Device device_of(const World& world, const Options& options);

}  // namespace shardloss::launch
