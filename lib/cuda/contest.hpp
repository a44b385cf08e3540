/// \file
/// Which of several ways to do the same work on a device is the fastest.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace shardloss::detail::cuda {

struct ContestResult {
  std::size_t winner = 0;
  float winner_ms = 0;  ///< one run of it among many of its own
  float first_ms = 0;   ///< the same of way 0; infinite where it does not run
};

/// Times ways 0 .. count - 1, at least one; `enqueue(i)` puts one run of way i on `stream`, or
/// throws Error where that way does not run. Blocks for about a second.
///
/// Large products draw all the power that a card may, so its clock follows what ran in the last
/// tens of milliseconds. Ways that take turns run at the clock of their average, and the one that
/// needs the least energy looks no better than the others, though it is the fastest by itself. So
/// turns only sort out who is far behind; the first four of the others, and way 0, run in bursts.
ContestResult contest(std::size_t count, const std::function<void(std::size_t)>& enqueue,
                      cudaStream_t stream);

}  // namespace shardloss::detail::cuda
