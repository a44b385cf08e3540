#include "contest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "resources.hpp"

namespace shardloss::detail::cuda {
namespace {

constexpr int turns = 3;
constexpr std::size_t most_in_bursts = 4;  // way 0 always is, beside or among them
constexpr float far_behind = 1.25f;
constexpr int bursts = 3;
constexpr float burst_ms = 60;
constexpr float settling_ms = 20;  // of a burst, not counted

constexpr float never = std::numeric_limits<float>::infinity();

float median(std::vector<float> values) {
  if (values.empty()) return never;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Contest {
 public:
  Contest(const std::function<void(std::size_t)>& enqueue, cudaStream_t stream)
      : enqueue_(enqueue), stream_(stream) {}

  /// Milliseconds of one run of each way, one after the other; `never` where it does not run.
  std::vector<float> by_turns(std::size_t count) {
    std::vector<std::vector<float>> times(count);
    std::vector<bool> runs(count, true);
    for (int turn = 0; turn <= turns; ++turn) {  // the first is not counted
      for (std::size_t way = 0; way < count; ++way) {
        if (!runs[way]) continue;
        try {
          const float once = run(way, 1);
          if (turn > 0) times[way].push_back(once);
        } catch (const Error&) {
          if (std::count(runs.begin(), runs.end(), true) == 1) throw;  // nothing else is left
          runs[way] = false;
          times[way].clear();
        }
      }
    }
    std::vector<float> medians;
    medians.reserve(count);
    for (const auto& of_one : times) medians.push_back(median(of_one));
    return medians;
  }

  /// Milliseconds of one run.
  float run(std::size_t way, int times) {
    SHARDLOSS_CUDA(cudaEventRecord(begin_.get(), stream_));
    for (int i = 0; i < times; ++i) enqueue_(way);
    SHARDLOSS_CUDA(cudaEventRecord(end_.get(), stream_));
    SHARDLOSS_CUDA(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    SHARDLOSS_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return milliseconds / static_cast<float>(times);
  }

  float burst(std::size_t way, float once_ms) {
    const auto times = [&](float ms) {
      return std::max(1, static_cast<int>(std::ceil(ms / std::max(once_ms, 1e-3f))));
    };
    for (int i = times(settling_ms); i > 0; --i) enqueue_(way);
    return run(way, times(burst_ms - settling_ms));
  }

 private:
  const std::function<void(std::size_t)>& enqueue_;
  cudaStream_t stream_;
  TimedEvent begin_, end_;
};

}  // namespace

ContestResult contest(std::size_t count, const std::function<void(std::size_t)>& enqueue,
                      cudaStream_t stream) {
  Contest contest(enqueue, stream);
  const std::vector<float> once = contest.by_turns(count);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return once[a] < once[b]; });
  std::vector<std::size_t> finalists;
  for (const std::size_t way : order) {
    const bool close = once[way] <= far_behind * once[order.front()];
    if (std::isfinite(once[way]) && (way == 0 || (close && finalists.size() < most_in_bursts)))
      finalists.push_back(way);
  }
  std::vector<std::vector<float>> times(count);
  for (int round = 0; round < bursts; ++round)
    for (const std::size_t way : finalists) times[way].push_back(contest.burst(way, once[way]));

  ContestResult result{order.front(), median(times[order.front()]), median(times[0])};
  for (const std::size_t way : finalists) {
    const float steady = median(times[way]);
    if (steady < result.winner_ms) result = {way, steady, result.first_ms};
  }
  return result;
}

}  // namespace shardloss::detail::cuda
