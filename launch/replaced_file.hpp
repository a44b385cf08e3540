/// \file
/// How a file appears under its name only when it is complete: written under a temporary name, then
/// renamed.
#pragma once

#include <string>

namespace shardloss::files {

/// The file that `path` leads to through links, which it is to stay; `path` itself where it is no
/// link or leads nowhere.
std::string behind_links(const std::string& path);

/// What `file` is called until it is complete.
std::string temporary_of(const std::string& file);

/// Opens the temporary file for writing, new: what was left under its name is removed, and a link
/// put there by another not followed. Returns the descriptor; -1 and errno where it cannot be.
int create_temporary(const std::string& temporary);

}  // namespace shardloss::files
