#include "contest.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "resources.hpp"

namespace shardloss::detail::cuda {
namespace {

constexpr int later_turns = 2;  // after the first, which leaves the most out
constexpr int bursts = 5;
constexpr float burst_ms = 60;
constexpr float settling_ms = 20;  // of a burst, not counted
constexpr std::size_t others_in_turns = 32;
constexpr std::size_t others_in_bursts = 8;
constexpr float behind_in_turns = 1.25f;
constexpr float behind_in_bursts = 1.04f;  // they repeat within 2 %

struct Way {
  std::size_t number = 0;
  float once_ms = 0;  // by turns
  std::vector<float> times;

  float median() const {
    std::vector<float> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

class Contest {
 public:
  Contest(std::size_t favourites, std::size_t count,
          const std::function<void(std::size_t)>& enqueue, cudaStream_t stream)
      : favourites_(favourites), ways_(count), enqueue_(enqueue), stream_(stream) {
    for (std::size_t i = 0; i < count; ++i) ways_[i].number = i;
  }

  /// One run of each way, one after the other.
  void turn() {
    for (Way& way : ways_) way.times.push_back(run(way.number, 1));
  }

  void forget_turns() {
    for (Way& way : ways_) {
      way.once_ms = way.median();
      way.times.clear();
    }
  }

  /// Many runs of each way, first some that are not counted.
  void burst() {
    for (Way& way : ways_) {
      const auto times = [&](float ms) {
        return std::max(1, static_cast<int>(std::ceil(ms / std::max(way.once_ms, 1e-3f))));
      };
      for (int i = times(settling_ms); i > 0; --i) enqueue_(way.number);
      way.times.push_back(run(way.number, times(burst_ms - settling_ms)));
    }
  }

  /// Leaves out what takes more than `behind` times the fastest, and all but the first `others`
  /// that are no favourites. Way 0 stays, and stays in front.
  void narrow(float behind, std::size_t others) {
    std::stable_sort(ways_.begin() + 1, ways_.end(),
                     [](const Way& a, const Way& b) { return a.median() < b.median(); });
    const float limit = behind * fastest().median();
    std::erase_if(ways_, [&](const Way& way) {
      if (way.number == 0) return false;
      if (way.median() > limit) return true;
      if (way.number < favourites_) return false;
      if (others == 0) return true;
      --others;
      return false;
    });
  }

  const Way& fastest() const {
    return *std::min_element(ways_.begin(), ways_.end(),
                             [](const Way& a, const Way& b) { return a.median() < b.median(); });
  }
  const Way& first() const { return ways_.front(); }

 private:
  /// Milliseconds of one of `times` runs.
  float run(std::size_t way, int times) {
    SHARDLOSS_CUDA(cudaEventRecord(begin_.get(), stream_));
    for (int i = 0; i < times; ++i) enqueue_(way);
    SHARDLOSS_CUDA(cudaEventRecord(end_.get(), stream_));
    SHARDLOSS_CUDA(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    SHARDLOSS_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return milliseconds / static_cast<float>(times);
  }

  std::size_t favourites_;
  std::vector<Way> ways_;
  const std::function<void(std::size_t)>& enqueue_;
  cudaStream_t stream_;
  TimedEvent begin_, end_;
};

}  // namespace

ContestResult contest(std::size_t favourites, std::size_t count,
                      const std::function<void(std::size_t)>& enqueue, cudaStream_t stream) {
  Contest contest(favourites, count, enqueue, stream);
  contest.turn();
  contest.narrow(behind_in_turns, others_in_turns);
  for (int i = 0; i < later_turns; ++i) contest.turn();
  contest.narrow(behind_in_turns, others_in_bursts);
  contest.forget_turns();
  for (int i = 0; i < bursts; ++i) {
    contest.burst();
    contest.narrow(behind_in_bursts, others_in_bursts);
  }
  return {contest.fastest().number, contest.fastest().median(), contest.first().median()};
}

}  // namespace shardloss::detail::cuda
