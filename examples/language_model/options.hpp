/// \file
/// The trainer's command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace language_model {

struct Options {
  std::string text;
  int held_out_every = 16;

  std::int64_t steps = 0;  ///< 0: as many as `seconds` allow
  double seconds = 60;
  std::int64_t stop_after = 0;  ///< 0: when the schedule is through
  std::int64_t batch = 0;       ///< sequences of a step; with fsdp: of each rank
  std::int64_t length = 0;
  std::int64_t context = 0;
  std::int64_t width = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t micro_batches = 1;
  double learning_rate = 0;
  double weight_decay = 0;
  std::uint64_t seed = 0;

  bool dense = false;
  bool row_sharded = false;
  bool fsdp = false;
  int tensor_parallel = 0;  ///< 0: the whole job
  bool strided = false;
  bool cuda = false;
  std::int64_t chunk_rows = 0;
  double deadline = 0;

  std::string resume;
  std::string save;
  std::string save_states;
  std::int64_t evaluate_every = 0;
  std::string progress;
  std::string curve;
  std::string svg;
  std::string report;
  double margin = 0;

  std::vector<std::string> compare;  ///< two curves, and nothing is trained
  double tolerance = 0;
};

/// A command line that does not fit; the text says why.
struct UsageError {
  std::string text;
};

/// Returns false after printing --help (where `speaks`). Throws UsageError.
bool parse_options(int argc, char** argv, int ranks, bool speaks, Options& options);

}  // namespace language_model
