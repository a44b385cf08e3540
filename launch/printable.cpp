#include "printable.hpp"

#include <cmath>
#include <limits>

namespace shardloss::files {

std::string on_one_line(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  return out;
}

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 80;
  const char* const rest = text.size() > longest ? "..." : "";
  return "'" + on_one_line(text.substr(0, longest)) + rest + "'";
}

double printable(double number) {
  return std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number;
}

}  // namespace shardloss::files
