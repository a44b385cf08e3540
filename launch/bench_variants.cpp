#include "bench_variants.hpp"

#include <cstdio>

#include "sample_check.hpp"

namespace shardloss::launch {

Variants::Variant::Variant(World& world, const Options& options, const std::string& words,
                           const Communicator& group, Device device)
    : text(words),
      data(make_bench_data(world, varied(options, words))),
      loss(data.share.problem, group, device),
      job(loss, data.share, data.options.way, data.options.outputs) {
  (void)job.run();
  error = check_sample(world.host(), data, loss, job);
}

Variants::Variants(World& world, const Options& options, const Communicator& group, Device device) {
  for (const std::string& text : options.variants)
    variants_.push_back(std::make_unique<Variant>(world, options, text, group, device));
}

Json Variants::rows(const Times& own) const {
  Json out = Json::array();
  for (const auto& one : variants_) {
    const Plan& plan = one->loss.plan();
    std::vector<double> ratios;
    for (std::size_t i = 0; i < own.seconds.size(); ++i)
      ratios.push_back(one->times.seconds[i] / own.seconds[i]);
    out.push_back({{"options", one->text},
                   {"problem", bench_name(one->loss.problem(), plan)},
                   {"right", right_json(one->error)},
                   {"error_share", one->error},
                   {"ratio", median(ratios)},
                   {"ratios", ratios},
                   {"pass", timing_json(one->times, pass_flops(plan, one->data.options.way),
                                        one->data.share.total_rows)},
                   {"workspace_bytes", plan.workspace_bytes},
                   {"saved_bytes", plan.saved_bytes}});
  }
  return out;
}

void print_variants(const Json& rows) {
  for (const Json& row : rows) {
    const auto ratios = row["ratios"].get<std::vector<double>>();
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    std::printf(
        "  %s\n    pass %9.3f ms (p95 %9.3f)  %.4f of the first (%.4f to %.4f)  %s%s  workspace "
        "%.1f MiB\n",
        row["options"].get<std::string>().c_str(), row["pass"]["median_ms"].get<double>(),
        row["pass"]["p95_ms"].get<double>(), row["ratio"].get<double>(), *least, *most,
        error_text(row["error_share"].get<double>()).c_str(), row["right"] == false ? " WRONG" : "",
        row["workspace_bytes"].get<double>() / (1 << 20));
  }
}

}  // namespace shardloss::launch
