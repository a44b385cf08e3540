/// \file
/// Tests of two processes that no launcher ties together: where one stands still or is killed, the
/// other has to find out by itself.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>

#include "device_tensors.hpp"
#include "shardloss/nccl.hpp"

namespace shardloss::test {

/// One of the two processes.
class Member {
 public:
  /// `other`: a socket to the other process.
  Member(int rank, int other) : rank_(rank), other_(other) {}

  int rank() const { return rank_; }
  Device device() const { return test_device(rank_); }
  /// Returns when the other process has come here too, or false when it has gone.
  bool meet() const;
  /// A fresh id, made by rank 0. Throws where the other process has gone.
  NcclId share_id() const;

 private:
  int rank_;
  int other_;
};

/// How a process ended.
struct Ending {
  bool hung_in_body = false;  ///< killed since its body did not come back
  bool hung_at_exit = false;  ///< killed since it did not end after its body
  int status = 0;             ///< as waitpid tells it

  /// By itself, without a failed expectation.
  bool clean() const;
  bool killed_by(int signal) const;
};

/// GPUs of this machine, counted in a process of its own: a process that has begun to use CUDA must
/// not fork.
int count_gpus();

/// Runs `body` in two fresh processes. Expectations that fail there are printed there, and make the
/// process end with status 1. A body gets `bound`, and a process then five seconds to end.
std::array<Ending, 2> in_two_processes(const std::function<void(const Member&)>& body,
                                       std::chrono::seconds bound = std::chrono::seconds(120));

}  // namespace shardloss::test
