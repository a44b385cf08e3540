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
  float first_ms = 0;   ///< the same of way 0, however far behind it is
};

/// Times ways 0 .. count - 1, at least one, of which the first `favourites` are the likely ones;
/// `enqueue(i)` puts one run of way i on `stream`. Blocks for some seconds.
///
/// Large products draw all the power that a card may, so its clock follows what ran in the last
/// tens of milliseconds. Ways that take turns run at the clock of their average, and the one that
/// needs the least energy looks no better than the others, though it is the fastest by itself. So
/// turns only sort out who is far behind. The favourites that are not, the eight of the others that
/// turns liked best, and way 0 run in bursts; whoever falls behind in these is left out of the
/// next.
ContestResult contest(std::size_t favourites, std::size_t count,
                      const std::function<void(std::size_t)>& enqueue, cudaStream_t stream);

}  // namespace shardloss::detail::cuda
