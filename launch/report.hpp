/// \file
/// What commands report in JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardloss/communicator.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::launch {

using Json = nlohmann::ordered_json;

Json to_json(const Problem& problem);
Json to_json(const Plan& plan);

/// What one rank measured; plain data, exchanged among ranks.
struct RankFigures {
  double seconds = 0;                ///< of the calls
  std::int64_t workspace_bytes = 0;  ///< planned, with what forward saves for backward
  std::int64_t resident_bytes = 0;   ///< the most that the process held so far
  std::int64_t collective_calls = 0;
  std::int64_t collective_bytes = 0;  ///< payload that this rank contributed
};

/// Those of all ranks. Collective.
std::vector<RankFigures> exchange(const Communicator& host, const RankFigures& mine);

/// seconds, peak_workspace_bytes, collectives, and each rank's own.
Json to_json(const std::vector<RankFigures>& ranks);

/// The most memory this process held so far.
std::int64_t peak_resident_bytes();

/// Throws Error(invalid_argument) where write_text would, before anything is computed. For a
/// path that check_outputs lets through.
void check_writable(const std::string& path);

/// Writes to a temporary name first, beside the file that `path` may be a link to. Throws
/// Error(invalid_argument).
void write_text(const std::string& path, const std::string& text);

}  // namespace shardloss::launch
