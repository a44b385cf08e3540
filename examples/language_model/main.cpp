// Trains a small language model on a real text. Its embedding and head are one matrix, sharded over
// the ranks by ShardLoss. Alone or under mpirun; --help lists the options.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>

#include "curve.hpp"
#include "options.hpp"
#include "place.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "text.hpp"
#include "trainer.hpp"
#include "world.hpp"

namespace language_model {
namespace {

/// Rises over the first steps, then falls linearly to a twentieth.
double rate_at(const Options& options, std::int64_t steps, double share) {
  const double warm = std::min(1.0, static_cast<double>(steps + 1) / 30);
  return options.learning_rate * warm * (1 - 0.95 * share);
}

/// The share of the schedule that is done; every rank gets the first one's.
double share_done(const Options& options, const Trainer& trainer, const Progress& progress,
                  const World& world) {
  if (options.stop_after > 0 && trainer.steps() >= options.stop_after) return 1;
  if (options.steps > 0)
    return static_cast<double>(trainer.steps()) / static_cast<double>(options.steps);
  const double share = options.seconds > 0 ? progress.seconds() / options.seconds : 1;
  return from_first(world.all, std::min(share, 1.0));
}

/// Until the schedule is through. The last line of the curve has the final held-out loss.
Report train(const Options& options, Trainer& trainer, const World& world) {
  std::unique_ptr<Curve> curve;
  if (world.first() && !options.curve.empty()) curve = std::make_unique<Curve>(options.curve);
  Progress progress(world.first() ? options.progress : "none");
  Report report;
  double smooth = 0;
  double share = share_done(options, trainer, progress, world);
  while (share < 1) {
    const double loss = trainer.step(rate_at(options, trainer.steps(), share));
    if (!std::isfinite(loss))
      throw std::runtime_error("the loss of step " + std::to_string(trainer.steps()) +
                               " is not finite");
    smooth = report.steps == 0 ? loss : 0.95 * smooth + 0.05 * loss;
    ++report.steps;
    report.words += trainer.words_per_step();
    report.seconds = progress.seconds();
    share = share_done(options, trainer, progress, world);
    const bool evaluates = share >= 1 || trainer.steps() % options.evaluate_every == 0;
    if (evaluates) report.held_out = trainer.held_out_loss();
    if (curve)
      curve->add({trainer.steps(), trainer.steps() * trainer.words_per_step(), report.seconds, loss,
                  evaluates ? report.held_out : -1});
    progress.show(
        {share, trainer.steps(), smooth, static_cast<double>(report.words) / report.seconds});
  }
  progress.finish();
  if (curve) curve->close();
  if (report.steps == 0) report.held_out = trainer.held_out_loss();
  report.unigram = trainer.held_out_unigram_entropy();
  report.margin = options.margin;
  return report;
}

int run(const Options& options, const Job& job) {
  const World world =
      make_world(job, options.tensor_parallel, options.strided, options.row_sharded,
                 std::chrono::milliseconds(static_cast<std::int64_t>(options.deadline * 1000)));
  const Text text = read_text(options.text, options.held_out_every);
  Trainer trainer(options, text, world, options.cuda ? job.local_rank() : -1);
  if (!options.resume.empty()) trainer.resume(options.resume);
  if (world.first()) print_opening(options, text, trainer, world);

  const Report report = train(options, trainer, world);
  if (!options.save.empty()) trainer.save(options.save);
  if (!options.save_states.empty()) trainer.save_states(options.save_states);
  if (world.first()) {
    const std::string table = to_string(report, options, trainer.sizes(), world);
    std::fputs(table.c_str(), stdout);
    if (!options.report.empty()) write_text(options.report, table);
    if (!options.svg.empty()) draw_curve(options.curve, options.svg, report.unigram);
  }
  return report.passes() ? 0 : 1;
}

}  // namespace
}  // namespace language_model

int main(int argc, char** argv) {
  using namespace language_model;
  const Job job(&argc, &argv);
  try {
    Options options;
    if (!parse_options(argc, argv, job.size(), job.rank() == 0, options)) return 0;
    if (!options.compare.empty())
      return curves_agree(options.compare[0], options.compare[1], options.tolerance) ? 0 : 1;
    return run(options, job);
  } catch (const UsageError& error) {
    if (job.rank() == 0) std::cerr << "language_model: " + error.text + "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "language_model: rank " + std::to_string(job.rank()) + ": " + error.what() + "\n";
    if (job.size() > 1) job.abort(1);
    return 1;
  }
}
