// `shardloss plan`: what a rank would do and hold.
#include <cstdio>

#include "commands.hpp"
#include "memory.hpp"
#include "report.hpp"
#include "source.hpp"

namespace shardloss::launch {

int plan_command(World& world, const Options& options) {
  if (!is_made_up(options))
    refuse("hidden", "FILE:NAME", "sizes (--rows, --hidden, --vocab): a plan reads no data");
  const Problem problem = complete_problem(options, nullptr);
  if (options.rank >= options.ranks)
    refuse("rank", std::to_string(options.rank),
           "less than the " + std::to_string(options.ranks) + " of --ranks");
  Bytes shards;
  shards.add(options.ranks, 1, sizeof(Shard));
  check_memory(shards);
  const Plan plan = make_plan(problem, options.ranks, options.rank, options.device);
  if (world.rank() != 0) return status_good;
  if (options.json) {
    const Json out = {{"problem", to_json(problem)}, {"plan", to_json(plan)}};
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf("%s", to_string(plan).c_str());
  }
  return status_good;
}

}  // namespace shardloss::launch
