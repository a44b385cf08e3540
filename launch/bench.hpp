/// \file
/// What the benches of all devices share: problems, times, rows of results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "report.hpp"
#include "shardloss/loss.hpp"
#include "share.hpp"
#include "source.hpp"

namespace shardloss::launch {

/// Options for the problem named by a string such as N8192_D4096_V128256_tp2_bf16_C2048: N, D and V
/// always; tp must be the number of ranks; the dtype is fp32 where none is given, the chunk rows
/// those of the options. Throws Error(invalid_argument).
Options bench_options(const Options& options, const std::string& text, int ranks);

/// The string of such options with the chunk rows that the plan chose.
std::string bench_name(const Problem& problem, const Plan& plan);

/// The middle value; the mean of the middle two.
double median(std::vector<double> values);

/// Seconds of the repetitions of one thing, each the slowest rank's.
struct Times {
  std::vector<double> seconds;

  double median() const { return launch::median(seconds); }
  double p95() const;
};

/// The largest of all ranks' values: the slowest rank's seconds. Collective.
double slowest(const Communicator& host, double value);

/// Returns when all ranks have come. Collective.
void barrier(const Communicator& host);

/// One row of results: for the screen in columns, for the report as JSON.
Json timing_json(const Times& times, double flops, std::int64_t rows);

/// true, false, or null where nothing was checked (NaN).
Json right_json(double error_share);

/// "error 12 % of allowed", or that nothing was checked (NaN).
std::string error_text(double error_share);

/// Operations of one pass.
double pass_flops(const Plan& plan, Way way);

/// A problem made up for a bench, and this rank's part of it.
struct BenchData {
  Options options;
  std::shared_ptr<const Source> source;
  Share share;
};

/// Collective.
BenchData make_bench_data(World& world, const Options& options);

/// The row of one problem. `dense` is the way that holds all logits.
Json bench_cpu(World& world, const Options& options);
/// Refuses every option that the dense way does not have. Throws Error(invalid_argument).
void check_dense(const Options& options, int ranks);
Json bench_dense(World& world, const Options& options);
Json bench_cuda(World& world, const Options& options);

/// Draws the pass's time against its memory with gnuplot; says so where there is none.
void draw_curve(const std::string& path, const Json& rows);

}  // namespace shardloss::launch
