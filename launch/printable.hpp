/// \file
/// Text from files and command lines in messages, and numbers that are computed.
#pragma once

#include <string>
#include <string_view>

namespace shardloss::files {

/// 'text' in quotes, on one line: control bytes as \xNN, and no longer than a line bears.
std::string printable(std::string_view text);

/// The number, a NaN without the sign that printf would show.
double printable(double number);

}  // namespace shardloss::files
