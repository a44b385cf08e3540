#include "bench_alone.hpp"

#include <algorithm>
#include <cstdio>

#include "memory.hpp"
#include "sample_check.hpp"

namespace shardloss::launch {
namespace {

BenchData whole(const BenchData& data, const Plan& plan) {
  Problem problem = data.share.problem;
  problem.shard_widths.clear();
  problem.chunking = {Chunking::Rule::rows, plan.chunk_rows};
  check_memory(data.options, problem, nullptr, 0, 1);
  return {data.options, data.source, read_share(*data.source, data.options, problem, 0, 1)};
}

}  // namespace

Alone::Alone(const BenchData& data, const Plan& plan, Device device)
    : ranks_(plan.ranks),
      data_(whole(data, plan)),
      loss_(data_.share.problem, self(), device),
      job_(loss_, data_.share, data_.options.way, data_.options.outputs) {
  (void)job_.run();
  error_ = check_sample(self(), data_, loss_, job_);
}

Json Alone::row(const Times& times, const Times& own) const {
  const Plan& plan = loss_.plan();
  std::vector<double> scalings;
  for (std::size_t i = 0; i < own.seconds.size(); ++i)
    scalings.push_back(times.seconds[i] / (ranks_ * own.seconds[i]));
  return {{"problem", bench_name(loss_.problem(), plan)},
          {"ranks", ranks_},
          {"right", right_json(error_)},
          {"error_share", error_},
          {"scaling", median(scalings)},
          {"scalings", scalings},
          {"pass", timing_json(times, pass_flops(plan, data_.options.way), data_.share.total_rows)},
          {"workspace_bytes", plan.workspace_bytes},
          {"saved_bytes", plan.saved_bytes}};
}

void print_alone(const Json& row) {
  const int ranks = row["ranks"].get<int>();
  const auto scalings = row["scalings"].get<std::vector<double>>();
  const auto [least, most] = std::minmax_element(scalings.begin(), scalings.end());
  std::printf(
      "  alone on one GPU %8.3f ms (p95 %8.3f)  scaling T1 / (%d T%d) %.4f (%.4f to %.4f)  %s%s  "
      "workspace %.1f MiB\n",
      row["pass"]["median_ms"].get<double>(), row["pass"]["p95_ms"].get<double>(), ranks, ranks,
      row["scaling"].get<double>(), *least, *most,
      error_text(row["error_share"].get<double>()).c_str(), row["right"] == false ? " WRONG" : "",
      row["workspace_bytes"].get<double>() / (1 << 20));
}

}  // namespace shardloss::launch
