#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "printable.hpp"
#include "safetensors.hpp"
#include "shardloss/error.hpp"

namespace shardloss::files {
namespace {

/// Walks an index and keeps the strings of its weight_map; everything else is skipped.
class IndexReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexReader(const std::string& origin) : origin_(origin) {}
  std::vector<std::pair<std::string, std::string>> files;
  bool found = false;

  bool start_object(std::size_t) override {
    if (depth_ == 1 && key_ == "weight_map") {
      if (found) refuse("found weight_map twice", "wanted it once");
      found = in_map_ = true;
    } else if (in_map_) {
      refuse("found an object in weight_map", "wanted file names");
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool key(string_t& text) override {
    key_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (in_map_) files.emplace_back(key_, text);
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) refuse("found an array", "wanted an object with weight_map");
    ++depth_;
    return other();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    refuse("found bytes that are not JSON near byte " + std::to_string(position),
           "wanted a JSON shard index");
  }

 private:
  bool other() const {
    if (in_map_) refuse("found something else than a string in weight_map", "wanted file names");
    return true;
  }
  [[noreturn]] void refuse(const std::string& found_text, const std::string& wanted) const {
    throw Error(ErrorCode::invalid_argument, origin_ + ": " + found_text + ", " + wanted);
  }

  const std::string& origin_;
  int depth_ = 0;
  bool in_map_ = false;
  std::string key_;
};

/// An index must not lead out of its folder.
bool stays_inside(const std::string& file) {
  const std::filesystem::path path(file);
  return !file.empty() && file.find('\0') == std::string::npos && path.is_relative() &&
         std::find(path.begin(), path.end(), "..") == path.end();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_shard_index(std::span<const std::byte> json,
                                                                   const std::string& origin) {
  const auto refuse = [&](const std::string& text) {
    throw Error(ErrorCode::invalid_argument, origin + ": " + text);
  };
  if (json.size() > max_header_bytes)
    refuse("found an index of " + std::to_string(json.size()) + " bytes, wanted at most " +
           std::to_string(max_header_bytes));
  const auto* text = reinterpret_cast<const char*>(json.data());
  if (json.empty() || std::memchr(text, 0, json.size()) != nullptr)
    refuse("found an index that is not JSON, wanted an object with weight_map");
  IndexReader reader(origin);
  nlohmann::json::sax_parse(text, text + json.size(), &reader);
  if (!reader.found) refuse("found no weight_map, wanted an object with weight_map");

  std::sort(reader.files.begin(), reader.files.end());
  for (std::size_t i = 0; i < reader.files.size(); ++i) {
    const auto& [name, file] = reader.files[i];
    if (!stays_inside(file))
      refuse("tensor " + printable(name) + ": found file " + printable(file) +
             ", wanted a relative name without '..'");
    if (i > 0 && reader.files[i - 1].first == name)
      refuse("found tensor " + printable(name) + " twice, wanted every name once");
  }
  return std::move(reader.files);
}

}  // namespace shardloss::files
