// `shardloss verify`: the ranks against unsharded fp64.
#include <cmath>
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "gather.hpp"
#include "job.hpp"
#include "memory.hpp"
#include "output_paths.hpp"
#include "printable.hpp"
#include "progress.hpp"
#include "random_problem.hpp"
#include "report.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {
namespace {

/// What became of one problem. The table is rank 0's; `passed` and `fault` are everybody's.
struct Verdict {
  bool passed = true;
  std::string fault;  ///< what is wrong beside tolerances
  std::vector<Comparison> table;
};

/// The worst of a table; nothing for an empty one.
const Comparison* worst_of(const std::vector<Comparison>& table) {
  const Comparison* worst = nullptr;
  for (const Comparison& one : table)
    if (worst == nullptr || one.share > worst->share) worst = &one;
  return worst;
}

bool has_invalid(const ReferenceProblem& whole) {
  for (std::size_t i = 0; i < whole.targets.size(); ++i) {
    const std::int64_t y = whole.targets[i];
    if (y == whole.ignore_index || (y >= 0 && y < whole.vocab)) continue;
    if (!whole.row_index) return true;
    for (const std::int64_t row : *whole.row_index)
      if (row == static_cast<std::int64_t>(i)) return true;
  }
  return false;
}

/// Rank 0: the gathered answer against the reference.
void compare_whole(const Source& source, const Options& options, const Loss& loss,
                   const Answer& answer, bool reported_invalid, Verdict& verdict) {
  const ReferenceProblem whole = read_whole(source, options, loss.problem());
  const ReferenceResult exact = reference(whole);
  const Plan& plan = loss.plan();
  const auto allowed =
      tolerance::allowed(loss.problem(), plan.logits_dtype, exact.logit_magnitude,
                         static_cast<double>(std::max<std::int64_t>(plan.chunks, plan.ranks)));
  verdict.table = compare_all(whole, exact, answer, allowed);
  for (const Comparison& one : verdict.table) verdict.passed = verdict.passed && one.passed();
  if (has_invalid(whole) != reported_invalid) {
    verdict.passed = false;
    verdict.fault = reported_invalid ? "an invalid target was reported, but there is none"
                                     : "an invalid target was not reported";
  }
}

/// Everybody learns what rank 0 found. Collective.
void share_verdict(const Communicator& host, Verdict& verdict) {
  const std::uint64_t mine = verdict.passed ? 0 : 1;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(&mine, all.data(), sizeof mine);
  for (const std::uint64_t failed : all) verdict.passed = verdict.passed && failed == 0;
}

std::unique_ptr<Source> open_source(const Options& options, int rank, int ranks) {
  if (!is_made_up(options)) {
    auto source = open_files(options);
    check_memory(options, complete_problem(options, source.get()), source.get(), rank, ranks);
    return source;
  }
  const Problem problem = complete_problem(options, nullptr);
  check_memory(options, problem, nullptr, rank, ranks);
  return make_up(options, make_shards(problem, ranks));
}

/// One problem, computed `repeat` times. Collective.
Verdict verify_problem(World& world, const Communicator& group, const Options& options,
                       std::int64_t repeat) {
  const Communicator& host = world.host();
  std::unique_ptr<Source> source;
  const Share share = together(host, [&] {
    source = open_source(options, world.rank(), world.size());
    return read_share(*source, options, complete_problem(options, source.get()), world.rank(),
                      world.size());
  });
  const Loss loss(share.problem, group, device_of(world, options));
  const auto job = together(host, [&] { return std::make_unique<Job>(loss, share, options.way); });
  const auto parts = pieces(job->results(), share);

  Verdict verdict;
  std::optional<std::string> invalid;
  std::uint64_t first = 0;
  for (std::int64_t i = 0; i < repeat; ++i) {
    invalid = job->run();
    const std::uint64_t bits = fingerprint(parts);
    if (i == 0) first = bits;
    if (bits != first) {
      verdict.passed = false;
      verdict.fault = "call " + std::to_string(i + 1) + " differs from the first bit by bit";
      break;
    }
  }
  const std::string differing = differing_output(host, parts);
  if (!differing.empty()) {
    verdict.passed = false;
    verdict.fault = differing + " is not the same bit by bit on all ranks";
  }
  const Answer answer = gather_answer(host, parts, share);
  if (world.rank() == 0)
    compare_whole(*source, options, loss, answer, invalid.has_value(), verdict);
  share_verdict(host, verdict);
  return verdict;
}

std::string where_text(const Comparison& one) {
  if (one.row < 0) return "whole";
  std::string text = "[" + std::to_string(one.row);
  if (one.column >= 0) text += ", " + std::to_string(one.column);
  return text + "]";
}

std::string share_text(const Comparison& one) {
  char text[64];
  if (std::isinf(one.share)) return "wrong";
  std::snprintf(text, sizeof text, "%.2f %%", 100 * one.share);
  return text;
}

void print_table(const std::vector<Comparison>& table) {
  std::printf("%-16s %12s  %-16s %16s %16s\n", "output", "of allowed", "worst at", "computed",
              "reference");
  for (const Comparison& one : table)
    std::printf("%-16s %12s  %-16s %16.9g %16.9g%s\n", one.output.c_str(), share_text(one).c_str(),
                where_text(one).c_str(), files::printable(one.got), files::printable(one.want),
                one.passed() ? (one.mistrusted ? "  mistrusted: mostly zeros" : "") : "  FAILED");
}

Json table_json(const std::vector<Comparison>& table) {
  Json out = Json::array();
  for (const Comparison& one : table)
    out.push_back({{"output", one.output},
                   {"share", std::isinf(one.share) ? Json("wrong") : Json(one.share)},
                   {"row", one.row},
                   {"column", one.column},
                   {"computed", one.got},
                   {"reference", one.want},
                   {"mistrusted", one.mistrusted},
                   {"passed", one.passed()}});
  return out;
}

int verify_once(World& world, const Options& options) {
  const Communicator group = world.group(device_of(world, options), options.deadline);
  const Verdict verdict = verify_problem(world, group, options, options.repeat);
  const Json report = {{"command", "verify"},
                       {"passed", verdict.passed},
                       {"fault", verdict.fault},
                       {"outputs", table_json(verdict.table)}};
  if (world.rank() == 0) {
    print_table(verdict.table);
    if (!verdict.fault.empty()) std::printf("FAILED: %s\n", verdict.fault.c_str());
    std::printf("%s on %d rank%s, %lld call%s\n", verdict.passed ? "passed" : "FAILED",
                world.size(), world.size() == 1 ? "" : "s", static_cast<long long>(options.repeat),
                options.repeat == 1 ? "" : "s");
    if (!options.report.empty()) write_text(options.report, report.dump(2) + "\n");
  }
  return verdict.passed ? status_good : status_wrong;
}

/// The command line that repeats a problem.
std::string command_text(const std::vector<std::string>& words, int ranks) {
  std::string text = ranks == 1 ? "" : "mpirun -np " + std::to_string(ranks) + " ";
  text += "shardloss verify";
  for (const std::string& word : words) text += " " + word;
  return text;
}

/// A random problem; refusals are faults here, as every drawn problem is a good one.
Verdict verify_random(World& world, const Communicator& group,
                      const std::vector<std::string>& words, std::int64_t repeat) {
  std::vector<const char*> argv = {"shardloss", "verify"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  Verdict verdict;
  verdict.passed = false;
  try {
    const Options options =
        parse_options(Command::verify, static_cast<int>(argv.size()), argv.data());
    return verify_problem(world, group, options, repeat);
  } catch (const Refusal& refusal) {
    verdict.fault = refusal.text;
  } catch (const Error& error) {
    if (error.fatal()) throw;
    verdict.fault = error.what();
  }
  return verdict;
}

int verify_many(World& world, const Options& options) {
  const Communicator group = world.group(device_of(world, options), options.deadline);
  std::int64_t failed = 0, mistrusted = 0;
  double closest = 0;
  {
    Progress progress("verify", options.random, world.rank() == 0);
    for (std::int64_t i = 0; i < options.random; ++i) {
      progress.at(i);
      const auto words = random_problem(options.seed, i, world.size(), options.device);
      const Verdict verdict = verify_random(world, group, words, options.repeat);
      for (const Comparison& one : verdict.table) mistrusted += one.mistrusted ? 1 : 0;
      const Comparison* worst = worst_of(verdict.table);
      if (verdict.passed) {
        if (worst != nullptr) closest = std::max(closest, worst->share);
        continue;
      }
      ++failed;
      if (world.rank() != 0) continue;
      std::printf("FAILED: %s\n  %s\n", verdict.fault.c_str(),
                  command_text(words, world.size()).c_str());
      if (worst != nullptr && !worst->passed()) print_table(verdict.table);
    }
  }
  if (world.rank() == 0)
    std::printf(
        "%lld random problems on %d rank%s, seed %llu: %lld failed; worst of the others "
        "%.0f %% of what is allowed; %lld gradients mostly zeros\n",
        static_cast<long long>(options.random), world.size(), world.size() == 1 ? "" : "s",
        static_cast<unsigned long long>(options.seed), static_cast<long long>(failed),
        100 * closest, static_cast<long long>(mistrusted));
  return failed == 0 ? status_good : status_wrong;
}

}  // namespace

int verify_command(World& world, const Options& options) {
  together(world.host(), [&] {
    check_outputs(options);
    if (world.rank() == 0 && !options.report.empty()) check_writable(options.report);
    return true;
  });
  return options.random > 0 ? verify_many(world, options) : verify_once(world, options);
}

}  // namespace shardloss::launch
