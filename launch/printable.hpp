/// \file
/// Text from files and command lines in messages, and numbers that are computed.
#pragma once

#include <string>
#include <string_view>

namespace shardloss::files {

/// The text with control bytes as \xNN.
std::string on_one_line(std::string_view text);

/// 'text' in quotes, on one line, and no longer than a line bears.
std::string printable(std::string_view text);

/// The number, a NaN without the sign that printf would show.
double printable(double number);

}  // namespace shardloss::files
