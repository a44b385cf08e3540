#include "printable.hpp"

#include <cmath>
#include <limits>

namespace shardloss::files {

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 80;
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  if (text.size() > longest) out += "...";
  return out + "'";
}

double printable(double number) {
  return std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number;
}

}  // namespace shardloss::files
