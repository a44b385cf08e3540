/// \file
/// Where a command writes, held against what it reads.
#pragma once

#include "options.hpp"

namespace shardloss::launch {

/// Throws Error(invalid_argument) where a file to be written, or the file beside it that takes its
/// name in the end, is one that is read (also a shard behind an index) or another to be written, or
/// where something that is no regular file has its name. A link to a file is written through.
void check_outputs(const Options& options);

}  // namespace shardloss::launch
