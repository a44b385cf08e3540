/// \file
/// Reading safetensors files. The format: 8 bytes little-endian length n of the header; n bytes of
/// JSON, an object of name -> {"dtype", "shape", "data_offsets": [begin, end]} and an optional
/// "__metadata__" of strings; then the data, which the offsets count from and cover without gaps or
/// overlaps.
///
/// Files are untrusted: any sequence of bytes gives Error(invalid_argument) or what the format
/// says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapped_file.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::files {

/// Longer headers are refused, as other readers do: they would cost memory before anything is
/// known.
inline constexpr std::size_t max_header_bytes = 100'000'000;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  std::string dtype;                 ///< as the file writes it: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;   ///< empty: a scalar
  std::span<const std::byte> bytes;  ///< within the file; not aligned to anything
};

/// The element type, or nothing for those (booleans, 8-bit floats, ...) that are not computed with.
std::optional<DType> dtype_of(const TensorEntry& entry);

/// "F32" for float32, ...
std::string_view safetensors_name(DType dtype);

/// "F32 [8, 16]", for messages.
std::string describe(const TensorEntry& entry);
/// "[8, 16]".
std::string describe(std::span<const std::int64_t> shape);

/// The tensors of a whole file, in order of their data. `origin` names the file in messages. Throws
/// Error(invalid_argument) for anything that is not safetensors.
std::vector<TensorEntry> parse_safetensors(std::span<const std::byte> file,
                                           const std::string& origin);

/// A file, or a set of files under a Hugging Face shard index, whose tensors are mapped when asked
/// for.
class Checkpoint {
 public:
  /// A path that ends in ".json" is an index: {"weight_map": {name: file}}, with files beside it
  /// whose names are relative and never lead upwards.
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  /// The tensor of that name; throws Error(invalid_argument) naming some that are there.
  const TensorEntry& tensor(const std::string& name);
  bool has(const std::string& name) const;
  /// Lets pages of `part` of a tensor's bytes out of memory.
  void release(std::span<const std::byte> part) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The weight map of an index, checked. `origin` names the file in messages.
std::vector<std::pair<std::string, std::string>> parse_shard_index(std::span<const std::byte> json,
                                                                   const std::string& origin);

}  // namespace shardloss::files
