#include "contest.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "resources.hpp"

namespace shardloss::detail::cuda {
namespace {

constexpr int turns = 3;
constexpr float far_behind = 1.25f;
constexpr int bursts = 3;
constexpr float burst_ms = 60;
constexpr float settling_ms = 20;  // of a burst, not counted

float median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Contest {
 public:
  Contest(const std::function<void(std::size_t)>& enqueue, cudaStream_t stream)
      : enqueue_(enqueue), stream_(stream) {}

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
  std::vector<std::vector<float>> times(count);
  for (int turn = 0; turn <= turns; ++turn) {  // the first is not counted
    for (std::size_t way = 0; way < count; ++way) {
      const float once = contest.run(way, 1);
      if (turn > 0) times[way].push_back(once);
    }
  }
  std::vector<float> once;
  for (const auto& of_one : times) once.push_back(median(of_one));
  const float limit = far_behind * *std::min_element(once.begin(), once.end());

  for (auto& of_one : times) of_one.clear();
  for (int round = 0; round < bursts; ++round) {
    for (std::size_t way = 0; way < count; ++way)
      if (once[way] <= limit) times[way].push_back(contest.burst(way, once[way]));
  }
  ContestResult result;
  for (std::size_t way = 0; way < count; ++way) {
    if (times[way].empty()) continue;
    const float steady = median(times[way]);
    if (result.winner_ms > 0 && steady >= result.winner_ms) continue;
    result.winner = way;
    result.winner_ms = steady;
  }
  result.first_ms = times[0].empty() ? once[0] : median(times[0]);
  return result;
}

}  // namespace shardloss::detail::cuda
