// `shardloss bench --device cuda`: the pass against its matrix products at the same chunk size
// (F_C), without chunks (F), and the memory traffic of separate row kernels (E).
#include <chrono>
#include <cstdio>

#include "bench.hpp"
#include "bench_alone.hpp"
#include "bench_variants.hpp"
#include "device_memory.hpp"
#include "gpu_floor.hpp"
#include "gpu_yardsticks.hpp"
#include "job.hpp"
#include "progress.hpp"
#include "sample_check.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

/// On an H200 a floor of 16-bit products slower than this says that something else is slow.
constexpr double trusted_tflops = 650;

/// Times what is put on a stream. A card that draws all the power it may sets its clock by what it
/// did before, and one that waited for the host begins faster than it goes on: so everything timed
/// comes right behind the same products.
class Stopwatch {
 public:
  Stopwatch(const Communicator& host, const Communicator& group, GpuFloor& before)
      : host_(host), before_(before), rendezvous_(group) {}

  /// Seconds on the device; the slowest rank's. Collective.
  template <class Enqueue>
  double seconds(cudaStream_t stream, Enqueue enqueue) {
    barrier(host_);
    settle(stream);
    rendezvous_.run(stream);
    return slowest(host_, elapsed(stream, enqueue));
  }

  /// The same of what one rank alone has, while the devices of those that pass nullptr are idle.
  /// Collective.
  double seconds_alone(Job* job) {
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    barrier(host_);
    if (job == nullptr) return slowest(host_, 0);
    const auto stream = static_cast<cudaStream_t>(job->stream().handle);
    settle(stream);
    return slowest(host_, elapsed(stream, [&] { job->enqueue(); }));
  }

 private:
  void settle(cudaStream_t stream) {
    before_.run();
    settled_.record(before_.stream());
    check_cuda(cudaStreamWaitEvent(stream, settled_.get(), 0), "cudaStreamWaitEvent");
  }

  template <class Enqueue>
  double elapsed(cudaStream_t stream, Enqueue enqueue) {
    start_.record(stream);
    enqueue();
    end_.record(stream);
    check_cuda(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, start_.get(), end_.get()),
               "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

  const Communicator& host_;
  GpuFloor& before_;
  Rendezvous rendezvous_;
  DeviceEvent settled_, start_, end_;
};

std::string card_name(int device) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

Json versions() {
  int driver = 0, runtime = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {{"driver", driver}, {"runtime", runtime}, {"cublaslt", cublasLtGetVersion()}};
}

std::int64_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

FloorShape floor_shape(const Share& share, const Plan& plan) {
  const Problem& problem = share.problem;
  FloorShape shape;
  shape.rows = problem.max_rows;
  shape.hidden = problem.hidden;
  shape.vocab = share.shard.vocab;
  shape.chunk_rows = plan.chunk_rows;
  shape.dtype = problem.dtype;
  shape.logits = problem.dtype;
  shape.grad_hidden = plan.ranks > 1 ? plan.grad_hidden_partial_dtype
                                     : grad_dtype(problem.grad_hidden, problem.dtype);
  shape.grad_weight =
      problem.accumulation == Accumulation::compact ? problem.dtype : DType::float32;
  return shape;
}

struct GpuTimes {
  Times pass, alone, floor, whole, copy, collectives, solo, enqueue;
};

/// Everything that is timed by turns.
struct Contestants {
  Job& job;
  Job* alone;  ///< --alone: of the first rank only
  Variants& variants;
  GpuFloor& floor;
  GpuFloor* whole;
  Copy& copy;
  CollectivesAlone* collectives;
  Job* solo;
};

GpuTimes measure(World& world, const Options& options, const Communicator& group, Contestants who) {
  const Communicator& host = world.host();
  Stopwatch watch(host, group, who.floor);
  const cudaStream_t stream = who.floor.stream();
  GpuTimes out;
  Progress progress("bench", options.warmup + options.iterations, world.rank() == 0);
  for (std::int64_t i = -options.warmup; i < options.iterations; ++i) {
    progress.at(i + options.warmup);
    double enqueue = 0;
    const double pass = who.variants.turn(i, who.job, [&](Job& one) {
      return watch.seconds(static_cast<cudaStream_t>(one.stream().handle), [&] {
        const auto start = std::chrono::steady_clock::now();
        one.enqueue();
        if (&one != &who.job) return;
        enqueue = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      });
    });
    const double alone = options.alone ? watch.seconds_alone(who.alone) : 0;
    const double floor = watch.seconds(stream, [&] { who.floor.run(); });
    const double whole =
        who.whole == nullptr ? floor : watch.seconds(stream, [&] { who.whole->run(); });
    const double copy = watch.seconds(stream, [&] { who.copy.run(stream); });
    const double collectives = who.collectives == nullptr
                                   ? 0
                                   : watch.seconds(stream, [&] { who.collectives->run(stream); });
    const double solo = who.solo == nullptr
                            ? pass
                            : watch.seconds(static_cast<cudaStream_t>(who.solo->stream().handle),
                                            [&] { who.solo->enqueue(); });
    if (i < 0) continue;
    out.pass.seconds.push_back(pass);
    out.alone.seconds.push_back(alone);
    out.floor.seconds.push_back(floor);
    out.whole.seconds.push_back(whole);
    out.copy.seconds.push_back(copy);
    out.collectives.seconds.push_back(collectives);
    out.solo.seconds.push_back(solo);
    out.enqueue.seconds.push_back(slowest(host, enqueue));
  }
  return out;
}

/// The row, in the terms of the targets: pass <= F_C + 1.1 E + half of the collectives' own time.
Json row_json(const Loss& loss, Way way, const GpuTimes& times, const GpuFloor& floor, double error,
              const std::string& card) {
  const Plan& plan = loss.plan();
  const Problem& problem = loss.problem();
  const double bandwidth = Copy::moved / times.copy.median();
  const double traffic = 3.0 * static_cast<double>(problem.max_rows) *
                         static_cast<double>(plan.shard.vocab) *
                         static_cast<double>(size_of(plan.logits_dtype)) / bandwidth;
  const double target = times.floor.median() + 1.1 * traffic + 0.5 * times.collectives.median();
  const double tflops = 1e-12 * floor.flops() / times.floor.median();
  const bool doubtful = size_of(problem.dtype) == 2 && card.find("H200") != std::string::npos &&
                        tflops < trusted_tflops;
  return {{"problem", bench_name(problem, plan)},
          {"device", "cuda"},
          {"card", card},
          {"grad_weight", name(problem.grad_weight)},
          {"accumulation", name(problem.accumulation)},
          {"right", right_json(error)},
          {"error_share", error},
          {"pass", timing_json(times.pass, pass_flops(plan, way), problem.max_rows)},
          {"products", timing_json(times.floor, floor.flops(), problem.max_rows)},
          {"products_unchunked", timing_json(times.whole, floor.flops(), problem.max_rows)},
          {"candidates", floor.candidates()},
          {"products_run", floor.choices()},
          {"ratio", times.pass.median() / times.floor.median()},
          {"ratio_unchunked", times.pass.median() / times.whole.median()},
          {"copy_gbytes_per_second", 1e-9 * bandwidth},
          {"traffic_ms", 1e3 * traffic},
          {"collectives_ms", 1e3 * times.collectives.median()},
          {"solo_ms", 1e3 * times.solo.median()},
          {"not_hidden_ms", 1e3 * (times.pass.median() - times.solo.median())},
          {"enqueue_ms", 1e3 * times.enqueue.median()},
          {"enqueue_share", times.enqueue.median() / times.pass.median()},
          {"target_ms", 1e3 * target},
          {"target_met", times.pass.median() <= target},
          {"mistrusted", doubtful}};
}

void print_row(const Json& row) {
  const auto number = [&](const char* key) { return row[key].get<double>(); };
  const auto mebibytes = [&](const char* key) {
    return row["memory"][key].get<double>() / (1 << 20);
  };
  std::printf(
      "%-38s pass %8.3f ms (p95 %8.3f)  F_C %8.3f  F %8.3f  E %.3f  target %8.3f %s  "
      "pass/F_C %.3f  pass/F %.3f\n",
      row["problem"].get<std::string>().c_str(), row["pass"]["median_ms"].get<double>(),
      row["pass"]["p95_ms"].get<double>(), row["products"]["median_ms"].get<double>(),
      row["products_unchunked"]["median_ms"].get<double>(), number("traffic_ms"),
      number("target_ms"), row["target_met"].get<bool>() ? "met" : "MISSED", number("ratio"),
      number("ratio_unchunked"));
  std::printf(
      "  %.0f tokens/s  %.1f TF/s, products %.1f%s  %s%s  "
      "collectives %.3f ms, not hidden %.3f ms  enqueued in %.3f ms  "
      "workspace %.1f MiB, by the device's count %.1f MiB, %.1f MiB by the first pass, %.1f MiB "
      "in passes\n",
      row["pass"]["tokens_per_second"].get<double>(),
      1e-3 * row["pass"]["gflops_per_second"].get<double>(),
      1e-3 * row["products"]["gflops_per_second"].get<double>(),
      row["mistrusted"].get<bool>() ? " (mistrusted)" : "",
      error_text(number("error_share")).c_str(), row["right"] == false ? " WRONG" : "",
      number("collectives_ms"), number("not_hidden_ms"), number("enqueue_ms"),
      mebibytes("workspace_bytes"), mebibytes("device_bytes"), mebibytes("device_bytes_first_pass"),
      mebibytes("device_bytes_in_passes"));
  if (row.contains("alone")) print_alone(row["alone"]);
  print_variants(row["variants"]);
}

/// F is left out where its logits do not fit.
std::unique_ptr<GpuFloor> make_whole(FloorShape shape, const void* x, const void* w,
                                     cudaStream_t stream) {
  if (shape.chunk_rows >= shape.rows) return nullptr;
  shape.chunk_rows = shape.rows;
  const std::int64_t needs =
      shape.rows * shape.vocab * static_cast<std::int64_t>(size_of(shape.logits)) +
      shape.vocab * shape.hidden * 4;
  if (needs + (std::int64_t{4} << 30) > free_device_bytes()) return nullptr;
  return std::make_unique<GpuFloor>(shape, x, w, stream);
}

}  // namespace

Json bench_cuda(World& world, const Options& options) {
  const Communicator& host = world.host();
  const Device device = device_of(world, options);
  const CurrentDevice current(device.index);
  const BenchData data = make_bench_data(world, options);
  const Communicator group = world.group(device, options.deadline);

  // What cublasLt, NCCL and the driver load for themselves is there before the loss is counted.
  Staging operands(device);
  const ConstTensor x = operands.in(data.share.hidden), w = operands.in(data.share.weight);
  operands.synchronize();
  const Plan plan = make_plan(data.share.problem, world.size(), world.rank(), DeviceKind::cuda);
  const FloorShape shape = floor_shape(data.share, plan);
  const DeviceStream stream;
  GpuFloor floor(shape, x.data(), w.data(), stream.get());
  std::unique_ptr<CollectivesAlone> collectives;
  if (world.size() > 1) {
    collectives = std::make_unique<CollectivesAlone>(group, plan);
    collectives->run(stream.get());
  }
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

  const std::int64_t before = free_device_bytes();
  const Loss loss(data.share.problem, group, device);
  const std::int64_t constructed = free_device_bytes();
  Job job(loss, data.share, options.way, options.outputs);
  const std::int64_t staged = free_device_bytes();
  (void)job.run();
  const std::int64_t ready = free_device_bytes();
  (void)job.run();
  const std::int64_t after = free_device_bytes();
  const double error = check_sample(host, data, loss, job);

  const auto whole = make_whole(shape, x.data(), w.data(), stream.get());
  Copy copy;
  std::unique_ptr<Solo> solo;
  if (world.size() > 1 && data.share.problem.layout == Layout::replicated &&
      !data.share.problem.class_weights)
    solo = std::make_unique<Solo>(data.share, loss.plan(), options, device);
  Variants variants(world, options, group, device);
  // Behind everything whose making depends on the memory that is left: ranks must not differ there.
  const auto alone = together(host, [&] {
    const bool here = options.alone && host.rank() == 0;
    return here ? std::make_unique<Alone>(data, loss.plan(), device) : nullptr;
  });
  const GpuTimes times =
      measure(world, options, group,
              {job, alone ? &alone->job() : nullptr, variants, floor, whole.get(), copy,
               collectives.get(), solo ? &solo->job() : nullptr});

  Json row = row_json(loss, options.way, times, floor, error, card_name(device.index));
  row["versions"] = versions();
  row["memory"] = {{"workspace_bytes", loss.plan().workspace_bytes},
                   {"device_bytes", before - constructed},
                   {"device_bytes_first_pass", staged - ready},
                   {"device_bytes_in_passes", ready - after}};
  row["variants"] = variants.rows(times.pass);
  if (alone) row["alone"] = alone->row(times.alone, times.pass);
  row["options"] = to_json(loss.problem());
  row["plan"] = to_json(loss.plan());
  if (host.rank() == 0) print_row(row);
  return row;
}

}  // namespace shardloss::launch
