/// \file
/// The whole of a bench's problem on one GPU, timed by turns with the ranks' pass: strong scaling,
/// free of what the machine does between two runs.
#pragma once

#include "bench.hpp"
#include "job.hpp"

namespace shardloss::launch {

/// The pass of --alone: the same data, chunk rows and options, not sharded. One rank has it.
class Alone {
 public:
  /// Sets it up and holds it against the reference. `plan` is that of the ranks' pass.
  Alone(const BenchData& data, const Plan& plan, Device device);

  Job& job() { return job_; }

  /// Its times, and T1 / (P TP) turn by turn, where `own` are those of the ranks' pass.
  Json row(const Times& times, const Times& own) const;

 private:
  int ranks_;
  BenchData data_;
  Loss loss_;
  Job job_;
  double error_;
};

/// For the screen.
void print_alone(const Json& row);

}  // namespace shardloss::launch
