/// \file
/// Further passes of a bench, timed by turns with its own, so that their ratio is free of what the
/// machine does meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench.hpp"
#include "job.hpp"

namespace shardloss::launch {

/// The passes of --variant beside the one they are compared with.
class Variants {
 public:
  /// Sets them up and holds them against the reference. Collective.
  Variants(World& world, const Options& options, const Communicator& group, Device device);

  /// Times `own` and the variants, each by `seconds(job)`, and returns own's. Every other turn goes
  /// backwards: no pass always comes after the same one. Turns below 0 are not kept. Collective.
  template <class Seconds>
  double turn(std::int64_t number, Job& own, Seconds seconds) {
    std::vector<Job*> order = {&own};
    for (const auto& one : variants_) order.push_back(&one->job);
    std::vector<double> taken(order.size());
    for (std::size_t k = 0; k < order.size(); ++k) {
      const std::size_t at = number % 2 == 0 ? k : order.size() - 1 - k;
      taken[at] = seconds(*order[at]);
    }
    for (std::size_t v = 0; v < variants_.size() && number >= 0; ++v)
      variants_[v]->times.seconds.push_back(taken[v + 1]);
    return taken[0];
  }

  /// A row each: its times, and their ratio to `own` turn by turn.
  Json rows(const Times& own) const;

 private:
  struct Variant {
    Variant(World& world, const Options& options, const std::string& text,
            const Communicator& group, Device device);
    std::string text;
    BenchData data;
    Loss loss;
    Job job;
    double error = 0;
    Times times;
  };

  std::vector<std::unique_ptr<Variant>> variants_;
};

/// For the screen. Nothing where there are none.
void print_variants(const Json& rows);

}  // namespace shardloss::launch
