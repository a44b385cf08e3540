/// \file
/// Safetensors files that many ranks write and read together, each its own rows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "batches.hpp"
#include "world.hpp"

namespace language_model {

/// A tensor as the file's header has it.
struct FileTensor {
  std::string dtype;                ///< "F32" or "I64"
  std::vector<std::int64_t> shape;  ///< one or two sizes
  std::uint64_t begin = 0;          ///< of its data, from the start of the file
  std::uint64_t end = 0;

  std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  std::int64_t columns() const { return shape.size() < 2 ? 1 : shape[1]; }
};

using Metadata = std::map<std::string, std::string>;

/// Writes one file from all ranks: the first rank the header, every rank rows. The file appears
/// under its name when finish() has seen every rank's rows, and is whole then.
class SafetensorsWriter {
 public:
  /// Collective. `tensors`: name, dtype, shape; the same on all ranks.
  SafetensorsWriter(const World& world, std::string path, std::map<std::string, FileTensor> tensors,
                    const Metadata& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Rows [rows.first, rows.first + rows.count) of that tensor.
  void write(const std::string& name, Share rows, const void* data);
  /// Collective.
  void finish();

 private:
  const World& world_;
  std::string path_;
  std::string unfinished_;
  std::map<std::string, FileTensor> tensors_;
  int file_ = -1;
};

class SafetensorsReader {
 public:
  /// Throws std::runtime_error for anything that is no safetensors file.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::string& metadata(const std::string& key) const;
  /// Rows of a float32 matrix that must be [rows, columns] as a whole.
  void read(const std::string& name, std::int64_t rows, std::int64_t columns, Share own,
            std::vector<float>& values) const;

 private:
  void parse(const std::string& header, std::uint64_t data_begin, std::uint64_t file_size);

  std::string path_;
  std::map<std::string, FileTensor> tensors_;
  Metadata metadata_;
  int file_ = -1;
};

}  // namespace language_model
