// `shardloss bench` on CPUs: the pass against its three matrix products alone.
#include <malloc.h>

#include <cstdio>

#include "bench.hpp"
#include "bench_variants.hpp"
#include "delay_transport.hpp"
#include "job.hpp"
#include "progress.hpp"
#include "sample_check.hpp"
#include "sgemm_floor.hpp"

namespace shardloss::launch {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Bytes that malloc has handed out.
std::int64_t heap_bytes() {
  const auto info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

std::int64_t array_bytes(const Share& share, const Results& results) {
  std::size_t bytes = 0;
  for (const HostArray* array : {&share.hidden,
                                 &share.weight,
                                 &share.bias,
                                 &share.targets,
                                 &share.soft_targets,
                                 &share.token_weights,
                                 &share.class_weights,
                                 &share.upstream_lse,
                                 &share.upstream_logprob,
                                 &share.upstream_entropy,
                                 &results.loss,
                                 &results.row_loss,
                                 &results.lse,
                                 &results.target_logprob,
                                 &results.entropy,
                                 &results.argmax,
                                 &results.correct,
                                 &results.grad_hidden,
                                 &results.grad_weight,
                                 &results.grad_bias})
    if (array->given()) bytes += array->bytes();
  return static_cast<std::int64_t>(bytes);
}

/// One pass on all ranks at once: the slowest rank's seconds. Collective.
template <class Pass>
double timed(const Communicator& host, Pass pass) {
  barrier(host);
  const auto start = Clock::now();
  pass();
  return slowest(host, seconds_since(start));
}

/// Pass and floor by turns, so that what the machine does meanwhile meets both.
struct Measured {
  Times pass, floor, delayed;
};

Measured measure(World& world, const Options& options, Job& job, Variants& variants,
                 SgemmFloor& floor, DelayTransport& transport) {
  const Communicator& host = world.host();
  Measured out;
  Progress progress("bench", options.warmup + options.iterations, world.rank() == 0);
  const auto delay = std::chrono::microseconds(static_cast<std::int64_t>(1e3 * options.delay_ms));
  for (std::int64_t i = -options.warmup; i < options.iterations; ++i) {
    progress.at(i + options.warmup);
    const double pass =
        variants.turn(i, job, [&](Job& one) { return timed(host, [&] { one.enqueue(); }); });
    const double products = timed(host, [&] { floor.run(); });
    double delayed = 0;
    if (delay.count() > 0) {
      transport.set_delay(delay);
      delayed = timed(host, [&] { job.enqueue(); });
      transport.set_delay({});
    }
    if (i < 0) continue;
    out.pass.seconds.push_back(pass);
    out.floor.seconds.push_back(products);
    if (delay.count() > 0) out.delayed.seconds.push_back(delayed);
  }
  return out;
}

void print_row(const Json& row) {
  std::printf(
      "%-36s pass %9.2f ms (p95 %9.2f)  products %9.2f ms  ratio %.3f  %8.0f tokens/s  "
      "%6.1f GF/s (products %6.1f)  %s  workspace %.1f MiB%s\n",
      row["problem"].get<std::string>().c_str(), row["pass"]["median_ms"].get<double>(),
      row["pass"]["p95_ms"].get<double>(), row["products"]["median_ms"].get<double>(),
      row["ratio"].get<double>(), row["pass"]["tokens_per_second"].get<double>(),
      row["pass"]["gflops_per_second"].get<double>(),
      row["products"]["gflops_per_second"].get<double>(),
      error_text(row["error_share"].get<double>()).c_str(),
      row["memory"]["workspace_bytes"].get<double>() / (1 << 20),
      row["right"] == false ? "  WRONG" : "");
  const Json& memory = row["memory"];
  std::printf(
      "  memory: library %lld bytes of %lld planned; resident at most %.1f MiB, "
      "%.1f MiB above inputs, gradients and plan\n",
      memory["library_bytes"].get<long long>(), memory["planned_bytes"].get<long long>(),
      memory["resident_bytes"].get<double>() / (1 << 20),
      memory["resident_above_bytes"].get<double>() / (1 << 20));
  if (row.contains("delay"))
    std::printf(
        "  delay: %.1f ms on each of %lld collectives; pass %.2f ms, grown by %.1f %% of "
        "their sum\n",
        row["delay"]["ms"].get<double>(), row["delay"]["collectives"].get<long long>(),
        row["delay"]["pass"]["median_ms"].get<double>(),
        100 * row["delay"]["grown_share"].get<double>());
  print_variants(row["variants"]);
}

Json delay_json(const Options& options, const Measured& times, std::int64_t collectives,
                double flops, std::int64_t rows) {
  const double sum = 1e-3 * options.delay_ms * static_cast<double>(collectives);
  const double grown = times.delayed.median() - times.pass.median();
  return {{"ms", options.delay_ms},
          {"collectives", collectives},
          {"pass", timing_json(times.delayed, flops, rows)},
          {"grown_share", sum == 0 ? 0 : grown / sum}};
}

}  // namespace

Json bench_cpu(World& world, const Options& options) {
  const Communicator& host = world.host();
  const BenchData data = make_bench_data(world, options);
  const auto transport = std::make_shared<DelayTransport>(world.group({}, options.deadline));
  const Communicator group(transport);
  const std::int64_t heap_before = heap_bytes();
  const Loss loss(data.share.problem, group);
  Job job(loss, data.share, options.way, options.outputs);
  const std::int64_t library = heap_bytes() - heap_before - array_bytes({}, job.results());
  const Traffic before = group.traffic();
  (void)job.run();
  const std::int64_t collectives = group.traffic().calls - before.calls;
  const auto resident =
      static_cast<std::int64_t>(slowest(host, static_cast<double>(peak_resident_bytes())));
  const double error = check_sample(host, data, loss, job);

  SgemmFloor floor(data.share, loss.plan());
  Variants variants(world, options, group, {});
  const Measured times = measure(world, options, job, variants, floor, *transport);
  const Plan& plan = loss.plan();
  const bool fused = options.way == Way::fused;
  const double flops = pass_flops(plan, options.way);
  const auto planned =
      static_cast<std::int64_t>(plan.workspace_bytes + (fused ? 0 : plan.saved_bytes));
  const std::int64_t rows = data.share.total_rows;
  Json row = {
      {"problem", bench_name(loss.problem(), plan)},
      {"device", "cpu"},
      {"way", fused ? "fused" : "two_step"},
      {"right", right_json(error)},
      {"error_share", error},
      {"ratio", times.pass.median() / times.floor.median()},
      {"pass", timing_json(times.pass, flops, rows)},
      {"products", timing_json(times.floor, floor.flops(), rows)},
      {"memory",
       {{"planned_bytes", planned},
        {"library_bytes", library},
        {"workspace_bytes", plan.workspace_bytes},
        {"resident_bytes", resident},
        {"resident_above_bytes", resident - planned - array_bytes(data.share, job.results())}}}};
  if (options.delay_ms > 0) row["delay"] = delay_json(options, times, collectives, flops, rows);
  row["variants"] = variants.rows(times.pass);
  row["options"] = to_json(loss.problem());
  row["plan"] = to_json(plan);
  if (host.rank() == 0) print_row(row);
  return row;
}

}  // namespace shardloss::launch
