// `shardloss run`: tensors in files, loss and gradients in a file.
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "job.hpp"
#include "memory.hpp"
#include "output_paths.hpp"
#include "printable.hpp"
#include "progress_transport.hpp"
#include "report.hpp"
#include "safetensors_writer.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

using files::SafetensorsWriter;
using files::TensorLayout;

/// Every rank writes its part; the file appears when all have.
class OutputFile {
 public:
  OutputFile(const Communicator& host, const std::string& path, const std::vector<Piece>& parts)
      : host_(host), path_(path) {
    if (path_.empty()) return;
    std::vector<TensorLayout> layout;
    for (const Piece& piece : parts)
      layout.push_back({piece.name, piece.array->dtype(), piece.whole});
    open(layout, SafetensorsWriter::Role::creator, host.rank() == 0);
    open(layout, SafetensorsWriter::Role::participant, host.rank() != 0);
  }

  /// Collective.
  void write(const std::vector<Piece>& parts) {
    if (path_.empty()) return;
    together(host_, [&] {
      for (const Piece& piece : parts)
        if (piece.count > 0)
          writer_->write(piece.name, piece.first, piece.count, piece.array->data());
      writer_->close();
      return true;
    });
    together(host_, [&] {
      if (host_.rank() == 0) writer_->commit();
      return true;
    });
  }

 private:
  void open(const std::vector<TensorLayout>& layout, SafetensorsWriter::Role role, bool mine) {
    together(host_, [&] {
      if (mine) writer_ = std::make_unique<SafetensorsWriter>(path_, layout, role);
      return true;
    });
  }

  const Communicator& host_;
  std::string path_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

/// What a person wants to know at once.
void print_summary(const Results& results, const Share& share, double seconds) {
  const std::int64_t counted = results.counted_rows.integers().at(0);
  std::string loss = "per row";
  if (share.problem.reduction != Reduction::none)
    loss = std::to_string(files::printable(results.loss.doubles().at(0)));
  std::printf("loss %s over %lld of %lld rows, %.3f s\n", loss.c_str(),
              static_cast<long long>(counted), static_cast<long long>(share.total_rows), seconds);
}

Json report(const Loss& loss, const std::vector<RankFigures>& figures, const Results& results) {
  Json out = {{"command", "run"}};
  out.update(to_json(figures));
  if (results.loss.shape().empty()) out["loss"] = results.loss.doubles().at(0);
  out["counted_rows"] = results.counted_rows.integers().at(0);
  out["problem"] = to_json(loss.problem());
  out["plan"] = to_json(loss.plan());
  return out;
}

}  // namespace

int run_command(World& world, const Options& options) {
  const Communicator& host = world.host();
  const Device device = device_of(world, options);
  const Share share = together(host, [&] {
    check_outputs(options);
    if (world.rank() == 0 && !options.report.empty()) check_writable(options.report);
    const auto source = open_files(options);
    const Problem problem = complete_problem(options, source.get());
    check_memory(options, problem, source.get(), world.rank(), world.size());
    return read_share(*source, options, problem, world.rank(), world.size());
  });
  std::shared_ptr<ProgressTransport> bar;
  const Communicator group = with_progress(world.group(device, options.deadline), bar);
  const Loss loss(share.problem, group, device);
  const auto job_owner =
      together(host, [&] { return std::make_unique<Job>(loss, share, options.way); });
  Job& job = *job_owner;
  const auto parts = pieces(job.results(), share);
  OutputFile file(host, options.out, parts);

  if (bar) bar->expect(loss.plan().chunks * (options.way == Way::two_step ? 2 : 1));
  const Traffic before = group.traffic();
  const auto invalid = job.run();
  if (bar) bar->finish();
  const Traffic after = group.traffic();
  file.write(parts);

  RankFigures mine;
  mine.seconds = job.seconds();
  mine.workspace_bytes = static_cast<std::int64_t>(
      loss.plan().workspace_bytes + (options.way == Way::two_step ? loss.plan().saved_bytes : 0));
  mine.resident_bytes = peak_resident_bytes();
  mine.collective_calls = after.calls - before.calls;
  mine.collective_bytes = after.bytes - before.bytes;
  const auto figures = exchange(host, mine);
  together(host, [&] {
    if (world.rank() != 0) return true;
    if (!options.report.empty())
      write_text(options.report, report(loss, figures, job.results()).dump(2) + "\n");
    print_summary(job.results(), share, mine.seconds);
    return true;
  });
  if (!invalid) return status_good;
  if (world.rank() == 0) std::fprintf(stderr, "shardloss: %s\n", invalid->c_str());
  return status_wrong;
}

}  // namespace shardloss::launch
