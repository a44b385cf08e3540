/// \file
/// The processes that this program was launched as, and how they agree on faults.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "shardloss/communicator.hpp"

namespace shardloss::launch {

/// One process, or those of an MPI job. MPI is started only where a launcher is there, so that the
/// program works alone where MPI is not set up.
class World {
 public:
  World(int* argc, char*** argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// This process's number on its host, which names its GPU.
  int local_rank() const noexcept { return local_rank_; }

  /// The group over which the ranks agree on faults and compare times. Collective when first asked
  /// for; that first deadline counts.
  const Communicator& host(std::chrono::milliseconds deadline = default_deadline);
  /// The group that computes on `device`. Collective.
  Communicator group(Device device, std::chrono::milliseconds deadline);

  /// Ends all processes with `status`.
  [[noreturn]] void abort(int status) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  bool mpi_ = false;
  std::optional<Communicator> host_;
};

/// What the ranks agreed that they cannot do; every rank holds the text of the first that found it.
struct Refusal {
  std::string text;
};

/// Tells the others whether this rank found a fault (empty: none), and throws Refusal on every rank
/// when any did. Collective.
void agree(const Communicator& host, const std::string& fault);

/// What an exception says, in words also where memory ran out. Never empty.
std::string fault_text(const std::exception& error);

/// Does something that may fail on some ranks only, then agrees. Collective.
template <class Function>
auto together(const Communicator& host, Function function) {
  std::string fault;
  std::optional<decltype(function())> result;
  try {
    result.emplace(function());
  } catch (const std::exception& error) {
    fault = fault_text(error);
  }
  agree(host, fault);
  return std::move(*result);
}

}  // namespace shardloss::launch
