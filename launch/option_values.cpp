#include "option_values.hpp"

#include <charconv>
#include <cmath>

#include "printable.hpp"

namespace shardloss::launch {

using files::printable;

void refuse(const std::string& option, const std::string& found, const std::string& wanted) {
  throw Error(ErrorCode::invalid_argument,
              "--" + option + ": found " + printable(found) + ", wanted " + wanted);
}

std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t least,
                           std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    const bool open_above = most == INT64_MAX && error != std::errc::result_out_of_range;
    std::string range = " from " + std::to_string(least) + " to " + std::to_string(most);
    if (open_above) range = least == INT64_MIN ? "" : " of at least " + std::to_string(least);
    refuse(option, text, "a whole number" + range);
  }
  return value;
}

double parse_number(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    refuse(option, text, "a number");
  return value;
}

std::vector<std::int64_t> parse_list(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> values;
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = text.find(',', begin);
    values.push_back(parse_integer(option, text.substr(begin, comma - begin), 0));
    if (comma == std::string::npos) return values;
    begin = comma + 1;
  }
}

DType parse_floating(const std::string& option, const std::string& text) {
  return parse_choice<DType>(option, text,
                             {{"float64", DType::float64},
                              {"float32", DType::float32},
                              {"bfloat16", DType::bfloat16},
                              {"float16", DType::float16}});
}

TensorOption parse_tensor(const std::string& option, const std::string& text, bool random_allowed) {
  TensorOption out;
  out.option = option;
  if (random_allowed && text == "random") {
    out.kind = TensorOption::Kind::random;
    return out;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
    refuse(option, text, random_allowed ? "FILE:NAME or random" : "FILE:NAME");
  out.kind = TensorOption::Kind::file;
  out.file = text.substr(0, colon);
  out.name = text.substr(colon + 1);
  return out;
}

}  // namespace shardloss::launch
