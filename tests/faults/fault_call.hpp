/// \file
/// One rank's part of a call in which something goes wrong, and what came of it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "call.hpp"
#include "faulty_transport.hpp"
#include "sample.hpp"
#include "shardloss/mpi.hpp"
#include "world.hpp"

namespace shardloss::test {

/// Of the groups under test. Long enough for a healthy call on a busy machine.
inline constexpr std::chrono::milliseconds fault_deadline{1000};
/// By how much an error may come after the deadline.
inline constexpr std::chrono::milliseconds fault_slack{1500};

#define SHARDLOSS_NEEDS_PEERS() \
  if (ranks() == 1) GTEST_SKIP() << "a group of one disagrees with nobody"

inline bool last_rank() { return rank() == ranks() - 1; }

/// How an action ended, and after how long.
struct Outcome {
  std::optional<Error> error;
  std::chrono::steady_clock::duration took{};

  ErrorCode code() const { return error ? error->code() : ErrorCode::internal; }
  std::string text() const { return error ? error->what() : "no error"; }
};

template <class Action>
Outcome outcome(const Action& action) {
  Outcome result;
  const auto start = std::chrono::steady_clock::now();
  try {
    action();
  } catch (const Error& error) {
    result.error = error;
  }
  result.took = std::chrono::steady_clock::now() - start;
  return result;
}

/// Rows in three chunks, so that there is a first, a middle and a last one.
inline Problem three_chunks(Layout layout = Layout::replicated) {
  Problem problem = plain_problem(12, 8, 23);
  problem.bias = true;
  problem.layout = layout;
  problem.chunking = {Chunking::Rule::rows, 4};
  return problem;
}

/// A Loss over a transport that can go wrong, with its tensors. Made by stage() and never freed:
/// after a failure MPI may still read and write whatever it was given.
struct Stage {
  Stage(const Sample& made, const Fault& fault)
      : sample(made),
        transport(
            std::make_shared<FaultyTransport>(from_mpi(MPI_COMM_WORLD, fault_deadline), fault)),
        communicator(transport),
        loss(sample.problem, communicator),
        tensors(sample, rank(), ranks(), {}) {}

  /// A finite loss although something went wrong: then it must be the right one.
  std::string finite_wrong_loss() const {
    const std::vector<double> values = tensors.loss.read();
    const std::vector<double> exact = reference(sample.data).loss;
    for (std::size_t i = 0; i < values.size() && i < exact.size(); ++i) {
      if (std::isfinite(values[i]) && std::abs(values[i] - exact[i]) > 1e-3 * std::abs(exact[i]))
        return "loss " + std::to_string(values[i]) + ", right is " + std::to_string(exact[i]);
    }
    return "";
  }

  /// Empty where a call now gives the right numbers on all ranks.
  std::string works() {
    tensors.reset();
    run(loss, tensors, Way::fused);
    return differences(sample, whole(sample, tensors.answer(), ranks()), loss.plan());
  }

  Sample sample;
  std::shared_ptr<FaultyTransport> transport;
  Communicator communicator;
  Loss loss;
  Tensors tensors;
};

inline Stage& stage(const Sample& sample, const Fault& fault = {}) {
  return *new Stage(sample, fault);
}

}  // namespace shardloss::test
