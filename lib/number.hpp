/// \file
/// Numbers in messages.
#pragma once

#include <charconv>
#include <string>

namespace shardloss::detail {

/// The shortest text that reads back as `value`: what is refused never looks like what is not.
inline std::string number(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

}  // namespace shardloss::detail
