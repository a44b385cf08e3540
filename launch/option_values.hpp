/// \file
/// Option values as people write them. Each function takes the option's name for its message and
/// throws Error(invalid_argument): "--rows: found 'x', wanted ...".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shardloss/error.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::launch {

[[noreturn]] void refuse(const std::string& option, const std::string& found,
                         const std::string& wanted);

/// A whole number from `least` to `most`.
std::int64_t parse_integer(const std::string& option, const std::string& text,
                           std::int64_t least = INT64_MIN, std::int64_t most = INT64_MAX);
/// A finite decimal number.
double parse_number(const std::string& option, const std::string& text);
/// "5,0,3": whole numbers, at least 0.
std::vector<std::int64_t> parse_list(const std::string& option, const std::string& text);
DType parse_floating(const std::string& option, const std::string& text);

/// One of some names.
template <class T>
T parse_choice(const std::string& option, const std::string& text,
               const std::vector<std::pair<std::string, T>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + name;
  }
  refuse(option, text, "one of " + names);
}

/// Where a tensor comes from.
struct TensorOption {
  enum class Kind : std::uint8_t {
    absent,
    file,    ///< FILE:NAME
    random,  ///< made up: the word "random", or a size for --hidden
  };
  Kind kind = Kind::absent;
  std::string option;  ///< its name, for messages
  std::string file, name;

  bool given() const { return kind != Kind::absent; }
};

/// FILE:NAME, or the word "random" where made-up data will do.
TensorOption parse_tensor(const std::string& option, const std::string& text, bool random_allowed);

}  // namespace shardloss::launch
