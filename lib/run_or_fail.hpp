/// \file
/// What an error in the middle of a pass does to the group.
#pragma once

#include <exception>
#include <string>

#include "shardloss/communicator.hpp"
#include "shardloss/error.hpp"

namespace shardloss::detail {

/// Runs a pass. An error in the middle of it leaves collectives without this rank: the group is
/// lost with it. Only what all ranks find at the same exchange (targets that differ, refused
/// arguments) is not.
template <class Run>
void run_or_fail(Transport& transport, const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    const bool together =
        error.code() == ErrorCode::mismatch || error.code() == ErrorCode::invalid_argument;
    if (error.fatal() || together || transport.size() == 1) throw;
    const std::string text(error.what());
    throw transport.fail(Error(error.code(), text.substr(name(error.code()).size() + 2), true));
  } catch (const std::exception& error) {
    throw transport.fail(Error(ErrorCode::internal, error.what(), true));
  }
}

}  // namespace shardloss::detail
