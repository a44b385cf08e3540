// `shardloss bench`: which problems, and what their rows look like.
#include "bench.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>

#include "memory.hpp"
#include "output_paths.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

struct NamedDType {
  const char* name;
  DType dtype;
};
constexpr NamedDType dtype_names[] = {{"fp32", DType::float32},  {"f32", DType::float32},
                                      {"bf16", DType::bfloat16}, {"fp16", DType::float16},
                                      {"f16", DType::float16},   {"fp64", DType::float64},
                                      {"f64", DType::float64}};

[[noreturn]] void refuse_problem(const std::string& text) {
  refuse("problem", text, "a name such as N8192_D4096_V128256_tp2_bf16_C2048");
}

/// Takes one part of the name; returns what it says, "" where it is none.
std::string take_part(const std::string& part, Options& options, int& tp) {
  const auto number = [&](std::size_t skip, std::int64_t most = INT64_MAX) {
    return parse_integer("problem", part.substr(skip), 1, most);
  };
  for (const NamedDType& known : dtype_names) {
    if (part != known.name) continue;
    options.compute_dtype = known.dtype;
    return "dtype";
  }
  if (part.starts_with("tp"))
    tp = static_cast<int>(number(2, INT_MAX));
  else if (part.starts_with("N"))
    options.rows = number(1);
  else if (part.starts_with("D"))
    options.hidden_size = number(1);
  else if (part.starts_with("V"))
    options.problem.vocab = options.problem.vocab_padded = number(1);
  else if (part.starts_with("C"))
    options.problem.chunking = {Chunking::Rule::rows, number(1)};
  else
    return "";
  return part.substr(0, part.starts_with("tp") ? 2 : 1);
}

std::string short_name(DType dtype) {
  for (const NamedDType& known : dtype_names)
    if (known.dtype == dtype) return known.name;
  return "";
}

Json bench_one(World& world, const Options& options) {
  if (options.dense) return bench_dense(world, options);
  return options.device == DeviceKind::cuda ? bench_cuda(world, options)
                                            : bench_cpu(world, options);
}

/// --alone sets ranks that share all rows against one GPU.
void check_alone(const Options& options, int ranks) {
  if (options.device != DeviceKind::cuda) refuse("alone", "--device cpu", "--device cuda");
  if (ranks == 1) refuse("alone", "one rank", "several");
  if (options.problem.layout != Layout::replicated)
    refuse("alone", "--layout row_sharded", "--layout replicated");
}

/// Whether the row's pass, that of --alone or a variant was past its tolerance.
bool is_wrong(const Json& row) {
  if (row.contains("right") && row["right"] == false) return true;
  if (row.contains("alone") && is_wrong(row["alone"])) return true;
  return row.contains("variants") &&
         std::any_of(row["variants"].begin(), row["variants"].end(), is_wrong);
}

/// The problems in order, each at every chunk size of the sweep.
std::vector<Options> problems_of(const Options& options, int ranks) {
  std::vector<std::string> names = options.problems;
  std::vector<Options> out;
  if (names.empty()) out.push_back(options);
  for (const std::string& name : names) out.push_back(bench_options(options, name, ranks));
  if (options.sweep.empty()) return out;
  std::vector<Options> swept;
  for (const Options& one : out) {
    for (const std::int64_t rows : options.sweep) {
      swept.push_back(one);
      swept.back().problem.chunking = {Chunking::Rule::rows, rows};
    }
  }
  return swept;
}

void write_report(const std::string& path, const Json& rows, bool complete) {
  const Json report = {{"command", "bench"}, {"complete", complete}, {"rows", rows}};
  write_text(path, report.dump(2) + "\n");
}

}  // namespace

Options bench_options(const Options& options, const std::string& text, int ranks) {
  Options out = options;
  std::istringstream stream(text);
  int tp = ranks;
  out.rows = out.hidden_size = out.problem.vocab = 0;
  std::set<std::string> said;
  for (std::string part; std::getline(stream, part, '_');) {
    const std::string what = take_part(part, out, tp);
    if (what.empty()) refuse_problem(text);
    if (!said.insert(what).second) refuse("problem", text, "its " + what + " once");
  }
  if (out.rows == 0 || out.hidden_size == 0 || out.problem.vocab == 0) refuse_problem(text);
  if (tp != ranks) refuse("problem", text, "tp" + std::to_string(ranks) + ", the number of ranks");
  return out;
}

std::string bench_name(const Problem& problem, const Plan& plan) {
  return "N" + std::to_string(problem.max_rows) + "_D" + std::to_string(problem.hidden) + "_V" +
         std::to_string(problem.vocab) + "_tp" + std::to_string(plan.ranks) + "_" +
         short_name(problem.dtype) + "_C" + std::to_string(plan.chunk_rows);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double Times::p95() const {
  std::vector<double> sorted = seconds;
  if (sorted.empty()) return 0;
  std::sort(sorted.begin(), sorted.end());
  return sorted[(sorted.size() * 95 + 99) / 100 - 1];
}

double slowest(const Communicator& host, double value) {
  std::vector<double> all(static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(&value, all.data(), sizeof value);
  return *std::max_element(all.begin(), all.end());
}

void barrier(const Communicator& host) { (void)slowest(host, 0); }

Json timing_json(const Times& times, double flops, std::int64_t rows) {
  const double median = times.median();
  return {{"median_ms", 1e3 * median},
          {"p95_ms", 1e3 * times.p95()},
          {"gflops_per_second", 1e-9 * flops / median},
          {"tokens_per_second", static_cast<double>(rows) / median},
          {"ms", [&] {
             Json all = Json::array();
             for (const double seconds : times.seconds) all.push_back(1e3 * seconds);
             return all;
           }()}};
}

Json right_json(double error_share) {
  return std::isnan(error_share) ? Json() : Json(error_share <= 1);
}

std::string error_text(double error_share) {
  if (std::isnan(error_share)) return "error not checked";
  char text[64];
  std::snprintf(text, sizeof text, "error %.0f %% of allowed", 100 * error_share);
  return text;
}

double pass_flops(const Plan& plan, Way way) {
  return way == Way::fused ? plan.forward_backward_flops : plan.forward_flops + plan.backward_flops;
}

BenchData make_bench_data(World& world, const Options& options) {
  return together(world.host(), [&] {
    if (!is_made_up(options))
      refuse("hidden", options.hidden.file, "made-up data: a bench reads no files");
    if (options.row_index.given() || !options.accumulate_into.empty())
      refuse("row-index", "random", "all rows: a bench computes whole problems");
    BenchData data;
    data.options = options;
    if (options.tune) data.options.problem.gemm = GemmChoice::tuned;
    const Problem problem = complete_problem(data.options, nullptr);
    check_memory(data.options, problem, nullptr, world.rank(), world.size());
    data.source = make_up(data.options, make_shards(problem, world.size()));
    data.share =
        read_share(*data.source, data.options, complete_problem(data.options, data.source.get()),
                   world.rank(), world.size());
    return data;
  });
}

int bench_command(World& world, const Options& options) {
  if (!options.report.empty() || !options.svg.empty())
    together(world.host(), [&] {
      check_outputs(options);
      for (const std::string& path : {options.report, options.svg})
        if (world.rank() == 0 && !path.empty()) check_writable(path);
      return true;
    });
  const std::vector<Options> problems = problems_of(options, world.size());
  for (const Options& one : problems)
    if (options.dense) check_dense(one, world.size());
  if (options.alone) check_alone(options, world.size());
  Json rows = Json::array();
  bool right = true;
  for (const Options& one : problems) {
    rows.push_back(bench_one(world, one));
    right = right && !is_wrong(rows.back());
    // Row by row: a run that is ended from outside leaves those that it has.
    if (!options.report.empty())
      together(world.host(), [&] {
        if (world.rank() == 0) write_report(options.report, rows, rows.size() == problems.size());
        return true;
      });
  }
  right = slowest(world.host(), right ? 0 : 1) == 0;  // only the first rank has what --alone gave
  if (world.rank() == 0 && !options.svg.empty()) draw_curve(options.svg, rows);
  return right ? status_good : status_wrong;
}

}  // namespace shardloss::launch
