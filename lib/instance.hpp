/// \file
/// What a Loss and an embedding are made of: a problem, a group, a plan and a backend.
#pragma once

#include <atomic>
#include <memory>

#include "backend.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/plan.hpp"
#include "workspace.hpp"

namespace shardloss::detail {

struct Instance {
  Problem problem;
  Communicator communicator;
  Device device;
  Plan plan;
  WorkspaceMap map;
  std::unique_ptr<Backend> backend;
  std::byte* workspace = nullptr;  // owned, or null
  std::atomic<std::uint64_t> calls{0};
  const std::uint64_t id;    ///< unlike that of any other object of the process
  std::uint64_t object = 0;  ///< rank 0's, by which all ranks of the group know it

  /// What the object takes of the backend.
  struct Needs {
    WorkspaceMap (*map)(const Problem&, const Plan&);
    bool products;   ///< matrix products, whose algorithms are chosen before the handshake
    bool workspace;  ///< a workspace of its own
  };

  /// Collective: prepares this rank, then shakes hands; throws on every rank or on none. `what`
  /// names the object, so that a Loss does not meet an embedding.
  Instance(const char* what, const Problem& problem, const Communicator& communicator,
           Device device, Needs needs);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  /// Runs `validate` for a new call and returns the call's number. Where this rank refuses, the CPU
  /// ranks of the group learn of it before the error leaves.
  template <class Validate>
  void admit(std::uint64_t& number, const Validate& validate) {
    communicator.transport().check();
    number = ++calls;
    try {
      validate();
    } catch (...) {
      refuse(number);
      throw;
    }
  }

 private:
  void prepare(Needs needs);
  void refuse(std::uint64_t number);
};

}  // namespace shardloss::detail
