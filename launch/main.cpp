// `shardloss`: run, verify, plan and bench.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "commands.hpp"
#include "printable.hpp"
#include "shardloss/error.hpp"
#include "staging.hpp"

namespace shardloss::launch {

Device device_of(const World& world, const Options& options) {
  if (options.device == DeviceKind::cpu) return {};
  return {DeviceKind::cuda, world.local_rank()};
}

namespace {

Command command_of(const std::string& word) {
  if (word == "run") return Command::run;
  if (word == "verify") return Command::verify;
  if (word == "plan") return Command::plan;
  if (word == "bench") return Command::bench;
  throw Error(ErrorCode::invalid_argument, "found the command " + files::printable(word) +
                                               ", wanted run, verify, plan or bench");
}

void check_device(const World& world, const Options& options) {
  if (options.device == DeviceKind::cpu || options.command == Command::plan) return;
  const int gpus = visible_gpus();
  if (world.local_rank() >= gpus)
    throw Error(ErrorCode::invalid_argument,
                "--device cuda: found " + std::to_string(gpus) + " GPUs, wanted one for rank " +
                    std::to_string(world.rank()) + ", which is number " +
                    std::to_string(world.local_rank()) + " on its host");
}

int dispatch(World& world, int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "--help";
  if (word == "--help" || word == "-h" || word == "help") {
    if (world.rank() == 0) std::printf("%s", overview().c_str());
    return status_good;
  }
  // Every rank reads the same command line, and the ranks have nothing yet to agree over.
  const Command command = command_of(word);
  const Options options = parse_options(command, argc, argv);
  if (options.help) {
    if (world.rank() == 0) std::printf("%s", help_text(command).c_str());
    return status_good;
  }
  const Communicator& host = world.host(options.deadline);
  together(host, [&] {
    check_device(world, options);
    return true;
  });
  switch (command) {
    case Command::run: return run_command(world, options);
    case Command::verify: return verify_command(world, options);
    case Command::plan: return plan_command(world, options);
    case Command::bench: return bench_command(world, options);
  }
  return status_refused;
}

[[noreturn]] int lost(const World& world, const std::exception& error) {
  std::fprintf(stderr, "shardloss: rank %d: %s\n", world.rank(), fault_text(error).c_str());
  world.abort(status_lost);
}

int guarded(World& world, int argc, char** argv) {
  const auto print = [&](const std::string& text) {
    if (world.rank() == 0) std::fprintf(stderr, "shardloss: %s\n", text.c_str());
  };
  try {
    return dispatch(world, argc, argv);
  } catch (const Refusal& refusal) {
    print(refusal.text);
    return status_refused;
  } catch (const Error& error) {
    // What is fatal has been printed by each rank that saw it, and leaves nobody to agree with.
    if (error.fatal()) world.abort(status_lost);
    // A device fails alone; the others would wait for this rank.
    if (error.code() == ErrorCode::device || error.code() == ErrorCode::internal)
      return lost(world, error);
    print(error.what());
    return status_refused;
  } catch (const std::exception& error) {
    return lost(world, error);
  }
}

}  // namespace
}  // namespace shardloss::launch

int main(int argc, char** argv) {
  shardloss::launch::World world(&argc, &argv);
  const int status = shardloss::launch::guarded(world, argc, argv);
  std::fflush(stdout);
  return status;
}
