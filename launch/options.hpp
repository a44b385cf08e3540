/// \file
/// The command line of `shardloss`.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "option_values.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::launch {

enum class Command : std::uint8_t { run, verify, plan, bench };

/// forward_backward in one pass, or forward and then backward from what it saved.
enum class Way : std::uint8_t { fused, two_step };

/// Which outputs are asked for beside the gradients.
enum class Answers : std::uint8_t {
  all,       ///< everything that the problem has
  training,  ///< the loss, each row's lse, and what has an upstream gradient
};

/// Everything that can be asked for. A command's options that another does not have keep their
/// defaults there.
struct Options {
  Command command = Command::run;
  bool help = false;

  TensorOption hidden, weight, targets, soft_targets, bias, token_weights, class_weights, row_index;
  TensorOption upstream, upstream_lse, upstream_logprob, upstream_entropy;
  /// All of them.
  std::array<const TensorOption*, 12> tensors() const {
    return {&hidden,   &weight,        &targets,          &soft_targets,
            &bias,     &token_weights, &class_weights,    &row_index,
            &upstream, &upstream_lse,  &upstream_logprob, &upstream_entropy};
  }
  std::optional<double> normalizer;
  std::optional<double> upstream_scale;

  /// Objective, layout and precision. Sizes and dtype are filled in when the inputs are known,
  /// vocab and vocab_padded where they were given.
  Problem problem;
  std::optional<DType> compute_dtype;  ///< not given: of the hidden states
  std::vector<std::int64_t> row_split;
  Way way = Way::fused;
  Answers outputs = Answers::all;  ///< plan and bench: training, where nothing else is said

  std::string out;
  std::string accumulate_into;  ///< a file, or "random" where data is made up
  std::string report;
  std::string config;
  DeviceKind device = DeviceKind::cpu;
  std::chrono::milliseconds deadline = default_deadline;

  // Made-up data, and sizes for the plan.
  std::int64_t rows = 64;
  std::int64_t hidden_size = 48;
  std::uint64_t seed = 1;
  std::int64_t invalid_targets = 0;

  // verify
  std::int64_t random = 0;  ///< so many random problems in place of one
  std::int64_t repeat = 8;  ///< 2 for random problems, where nothing else is said

  // plan
  int ranks = 1;
  int rank = 0;
  bool json = false;

  // bench
  std::vector<std::string> problems;
  std::int64_t warmup = 2;
  std::int64_t iterations = 10;
  std::int64_t check_rows = 6;  ///< bench: rows held against the reference
  double delay_ms = 0;
  std::vector<std::int64_t> sweep;
  bool dense = false;
  bool alone = false;
  bool tune = false;
  std::vector<std::string> variants;  ///< options of further passes, timed by turns with the first
  std::string svg;
};

/// The options in argv[2..]. Throws Error(invalid_argument) with one line.
Options parse_options(Command command, int argc, const char* const* argv);

/// bench: options with those of a pass that `variant` has, words as on a command line, in place of
/// theirs. Throws Error(invalid_argument) with one line.
Options varied(const Options& options, const std::string& variant);

/// What `shardloss COMMAND --help` prints.
std::string help_text(Command command);

/// What `shardloss --help` prints.
std::string overview();

}  // namespace shardloss::launch
