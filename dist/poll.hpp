/// \file
/// Waiting for a peer without ever waiting for good.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "shardloss/communicator.hpp"

namespace shardloss::detail {

/// Time since construction, and how to spend the next moment of a wait: spin while the answer is
/// near, then hand the processor over (ranks may share a core), then sleep.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  Clock::duration waited() const { return Clock::now() - start_; }

  void pause() {
    const Clock::duration so_far = waited();
    if (so_far < std::chrono::microseconds(20)) return;
    if (so_far < std::chrono::milliseconds(5)) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(so_far / 50, longest_sleep));
  }

 private:
  static constexpr std::chrono::microseconds longest_sleep{500};
  Clock::time_point start_ = Clock::now();
};

/// "waited 1.00 s for WHAT, the deadline is 1.00 s".
inline std::string waited_for(const std::string& what, Patience::Clock::duration waited,
                              std::chrono::milliseconds deadline) {
  char times[80];
  std::snprintf(times, sizeof times, "%.2f s for ", std::chrono::duration<double>(waited).count());
  std::string text = std::string("waited ") + times + what;
  std::snprintf(times, sizeof times, ", the deadline is %.2f s",
                std::chrono::duration<double>(deadline).count());
  return text + times;
}

/// Calls `ready` until it answers true. Leaves with the first error when the transport fails
/// meanwhile, from another thread too, and fails it with Error(timeout) past the deadline.
template <class Ready>
void poll(Transport& transport, const char* what, Ready&& ready) {
  Patience patience;
  while (!ready()) {
    transport.check();
    if (patience.waited() > transport.deadline()) {
      throw transport.fail(Error(ErrorCode::timeout,
                                 waited_for(what, patience.waited(), transport.deadline()), true));
    }
    patience.pause();
  }
}

}  // namespace shardloss::detail
