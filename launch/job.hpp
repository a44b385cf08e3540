/// \file
/// One computation on one rank: the calls, and what they answered.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "shardloss/loss.hpp"
#include "share.hpp"
#include "staging.hpp"

namespace shardloss::launch {

/// What a rank gets, in host memory. Not given: cannot be asked for in this problem.
struct Results {
  HostArray loss, row_loss, lse, target_logprob, entropy, argmax, correct, counted_rows,
      cross_entropy, z_loss;
  HostArray grad_hidden, grad_weight, grad_bias;
};

/// A result as part of the whole output.
struct Piece {
  std::string name;
  const HostArray* array = nullptr;
  std::vector<std::int64_t> whole;  ///< shape of the output
  std::int64_t first = 0;           ///< element of it at which this rank's lies
  std::int64_t count = 0;           ///< elements that this rank contributes
  bool replicated = false;          ///< the same on every rank; only rank 0 contributes
};

/// The results of a rank, the same list in the same order on every rank.
std::vector<Piece> pieces(const Results& results, const Share& share);

/// Runs a share's problem as often as asked for.
class Job {
 public:
  Job(const Loss& loss, const Share& share, Way way, Answers answers = Answers::all);

  /// Computes once. Outputs hold NaN before, or what gradients are added to. Returns the text of
  /// Error(invalid_target) where there was one; throws every other.
  std::optional<std::string> run();

  /// The calls alone, into whatever the outputs hold; on CUDA they are only enqueued.
  void enqueue();
  Stream stream() const { return staging_.stream(); }

  const Results& results() const { return results_; }
  double seconds() const { return seconds_; }  ///< of the last run, without copies

 private:
  void make_results(Answers answers);
  void call();

  const Loss& loss_;
  const Share& share_;
  Way way_;
  Results results_;
  Staging staging_;
  Inputs inputs_;
  Upstreams upstreams_;
  Outputs outputs_;
  Gradients gradients_;
  std::optional<Saved> saved_;
  std::optional<std::string> invalid_;
  double seconds_ = 0;
};

}  // namespace shardloss::launch
