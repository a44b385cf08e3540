#include "safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "printable.hpp"
#include "shardloss/error.hpp"

namespace shardloss::files {
namespace {

struct KnownDType {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array<KnownDType, 16> known_dtypes = {{
    {"F64", 8, DType::float64},
    {"F32", 4, DType::float32},
    {"BF16", 2, DType::bfloat16},
    {"F16", 2, DType::float16},
    {"I64", 8, DType::int64},
    {"I32", 4, DType::int32},
    {"U8", 1, DType::uint8},
    {"BOOL", 1, {}},
    {"I8", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"U32", 4, {}},
    {"U64", 8, {}},
    {"C64", 8, {}},
}};

const KnownDType* find_dtype(std::string_view name) {
  for (const KnownDType& known : known_dtypes)
    if (known.name == name) return &known;
  return nullptr;
}

constexpr std::size_t max_dimensions = 16;

/// An entry as the header has it, offsets not yet trusted.
struct RawEntry {
  TensorEntry entry;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

/// Walks the header's JSON and takes nothing that the format does not have. As it never builds a
/// document, memory stays within a small multiple of the header, however it is nested.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& origin) : origin_(origin) {}
  std::vector<RawEntry> entries;

  bool start_object(std::size_t) override {
    if (++depth_ > 2 || in_array_) refuse("found an object", "wanted a flat entry");
    if (depth_ == 2 && !metadata_) entries.emplace_back().entry.name = name_;
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !metadata_) finish_entry();
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = text;
      metadata_ = text == "__metadata__";
    } else {
      field_ = text;
    }
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && metadata_) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype" || entries.back().has_dtype)
      refuse("found the string " + printable(text), "wanted one dtype, shape and data_offsets");
    entries.back().entry.dtype = text;
    entries.back().has_dtype = true;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || metadata_ || in_array_) refuse("found an array", "wanted an entry");
    RawEntry& entry = entries.back();
    bool& seen = field_ == "shape" ? entry.has_shape : entry.has_offsets;
    if ((field_ != "shape" && field_ != "data_offsets") || seen)
      refuse("found " + printable(field_), "wanted one dtype, shape and data_offsets");
    seen = in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) refuse("found a number", "wanted one dtype, shape and data_offsets");
    RawEntry& entry = entries.back();
    if (field_ == "data_offsets") {
      if (entry.offsets.size() == 2) refuse("found more than two data_offsets", "wanted two");
      entry.offsets.push_back(value);
    } else {
      if (entry.entry.shape.size() == max_dimensions || value > INT64_MAX)
        refuse("found a shape out of range", "wanted at most 16 sizes below 2^63");
      entry.entry.shape.push_back(static_cast<std::int64_t>(value));
    }
    return true;
  }
  bool number_integer(number_integer_t) override { return refuse_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse_value("a number that is not an integer");
  }
  bool null() override { return refuse_value("null"); }
  bool boolean(bool) override { return refuse_value("a boolean"); }
  bool binary(binary_t&) override { return refuse_value("binary"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    refuse("found bytes that are not JSON near byte " + std::to_string(8 + position),
           "wanted a JSON header");
  }

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& wanted) const {
    const std::string where = depth_ >= 1 ? " in entry " + printable(name_) : "";
    throw Error(ErrorCode::invalid_argument, origin_ + ": " + found + where + ", " + wanted);
  }
  bool refuse_value(const char* what) const {
    refuse(std::string("found ") + what, "wanted strings and sizes only");
  }
  void finish_entry() const {
    const RawEntry& entry = entries.back();
    if (!entry.has_dtype || !entry.has_shape || entry.offsets.size() != 2)
      refuse("found an incomplete entry", "wanted dtype, shape and two data_offsets");
  }

  const std::string& origin_;
  int depth_ = 0;
  bool in_array_ = false;
  bool metadata_ = false;
  std::string name_, field_;
};

/// Bytes of a tensor, or nothing where that does not fit 64 bits.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, std::size_t element) {
  std::uint64_t bytes = element;
  bool empty = false, overflow = false;
  for (const std::int64_t size : shape) {
    empty = empty || size == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
  }
  if (empty) return 0;
  if (overflow) return std::nullopt;
  return bytes;
}

/// Gives the entry its bytes of `data`.
void place(RawEntry& raw, std::span<const std::byte> data, const std::string& origin) {
  const std::string what = origin + ": tensor " + printable(raw.entry.name) + ": ";
  const std::uint64_t begin = raw.offsets[0], end = raw.offsets[1];
  if (begin > end || end > data.size())
    throw Error(ErrorCode::invalid_argument,
                what + "found data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
                    "], wanted them within the " + std::to_string(data.size()) + " bytes of data");
  if (const KnownDType* known = find_dtype(raw.entry.dtype)) {
    const auto wanted = bytes_of(raw.entry.shape, known->bytes);
    if (!wanted || *wanted != end - begin)
      throw Error(ErrorCode::invalid_argument,
                  what + "found " + std::to_string(end - begin) + " bytes, wanted " +
                      (wanted ? std::to_string(*wanted) : "more than 2^64") + " for " +
                      describe(raw.entry));
  }
  raw.entry.bytes = data.subspan(begin, end - begin);
}

/// Refuses names that come twice; leaves the entries in order of their data.
void check_names(std::vector<RawEntry>& entries, const std::string& origin) {
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.entry.name < b.entry.name; });
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (entries[i].entry.name == entries[i - 1].entry.name)
      throw Error(ErrorCode::invalid_argument, origin + ": found tensor " +
                                                   printable(entries[i].entry.name) +
                                                   " twice, wanted every name once");
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.offsets < b.offsets; });
}

}  // namespace

std::optional<DType> dtype_of(const TensorEntry& entry) {
  const KnownDType* known = find_dtype(entry.dtype);
  return known == nullptr ? std::nullopt : known->dtype;
}

std::string_view safetensors_name(DType dtype) {
  for (const KnownDType& known : known_dtypes)
    if (known.dtype == dtype) return known.name;
  return "";
}

std::string describe(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string describe(const TensorEntry& entry) {
  std::string dtype = printable(entry.dtype);
  return dtype.substr(1, dtype.size() - 2) + " " + describe(entry.shape);
}

std::vector<TensorEntry> parse_safetensors(std::span<const std::byte> file,
                                           const std::string& origin) {
  const auto refuse = [&](const std::string& text) {
    throw Error(ErrorCode::invalid_argument, origin + ": " + text);
  };
  if (file.size() < 8)
    refuse("found " + std::to_string(file.size()) + " bytes, wanted a safetensors file");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > max_header_bytes || length > file.size() - 8)
    refuse("found a header of " + std::to_string(length) + " bytes, wanted at most " +
           std::to_string(std::min<std::uint64_t>(max_header_bytes, file.size() - 8)) +
           " (is this a safetensors file?)");
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  // The parser takes a zero byte for the end of its input.
  if (length == 0 || *text != '{' || std::memchr(text, 0, length) != nullptr)
    refuse("found a header that is not a JSON object, wanted a safetensors file");
  HeaderReader reader(origin);
  nlohmann::json::sax_parse(text, text + length, &reader);

  const auto data = file.subspan(8 + length);
  check_names(reader.entries, origin);
  std::vector<TensorEntry> tensors;
  std::uint64_t covered = 0;
  for (RawEntry& raw : reader.entries) {
    place(raw, data, origin);
    if (raw.offsets[0] != covered)
      refuse("tensor " + printable(raw.entry.name) + ": found data_offsets from " +
             std::to_string(raw.offsets[0]) + ", wanted " + std::to_string(covered) +
             " (tensors neither overlap nor leave gaps)");
    covered = raw.offsets[1];
    tensors.push_back(std::move(raw.entry));
  }
  if (covered != data.size())
    refuse("found " + std::to_string(data.size()) + " bytes of data, wanted " +
           std::to_string(covered));
  return tensors;
}

}  // namespace shardloss::files
