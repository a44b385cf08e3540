/// \file
/// What a GPU pass is seen beside: memory's bandwidth, its collectives alone, the pass without
/// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_memory.hpp"
#include "job.hpp"
#include "shardloss/loss.hpp"
#include "share.hpp"

namespace shardloss::launch {

/// A copy larger than any cache, for the bandwidth of memory.
class Copy {
 public:
  Copy();
  void run(cudaStream_t stream) const;
  /// Read and written.
  static constexpr double moved = 2.0 * (std::size_t{1} << 30);

 private:
  static constexpr std::size_t bytes = std::size_t{1} << 30;
  DeviceMemory from_, to_;
};

/// Brings the ranks' streams to the same moment.
class Rendezvous {
 public:
  explicit Rendezvous(const Communicator& group);
  void run(cudaStream_t stream) const;

 private:
  Communicator group_;
  std::vector<std::int64_t> bytes_;
  DeviceMemory memory_;
};

/// The collectives of one forward_backward, without the pass.
class CollectivesAlone {
 public:
  CollectivesAlone(const Communicator& group, const Plan& plan);

  void run(cudaStream_t stream) const;

 private:
  struct Kind {
    std::string kind;
    std::int64_t calls;
    DType dtype;
    std::int64_t elements;
    std::vector<std::int64_t> parts;  ///< of each rank: bytes to gather, or elements to scatter
  };
  void run_once(const Kind& kind, cudaStream_t stream) const;

  Communicator group_;
  std::vector<Kind> kinds_;
  DeviceMemory memory_;
};

/// This rank's shard as a problem of its own: the same work without a message.
class Solo {
 public:
  Solo(const Share& share, const Plan& plan, const Options& options, Device device);
  Job& job() { return *job_; }

 private:
  Share share_;
  std::unique_ptr<Loss> loss_;
  std::unique_ptr<Job> job_;
};

}  // namespace shardloss::launch
