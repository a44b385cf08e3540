/// \file
/// Writing safetensors files, by one process or by several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shardloss/tensor.hpp"

namespace shardloss::files {

/// A tensor of a file to be written.
struct TensorLayout {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
};

/// A file that appears under its name only when it is complete. Links to it stay links.
///
/// One process constructs it with Role::creator; only then others that write parts of it, with the
/// same layout, as Role::participant. When all have written and closed, the creator commits.
class SafetensorsWriter {
 public:
  enum class Role { creator, participant };

  /// Throws Error(invalid_argument) where the file cannot be made.
  SafetensorsWriter(const std::string& path, const std::vector<TensorLayout>& tensors,
                    Role role = Role::creator);
  /// Removes what was not committed (creator).
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes elements [first, first + count) of a tensor, counted in row-major order.
  void write(const std::string& name, std::int64_t first, std::int64_t count, const void* data);
  /// Writes a whole tensor.
  void write(const std::string& name, const void* data);

  /// Brings this process's parts to the disk and closes the file.
  void close();
  /// Creator, after every participant has closed: gives the file its name.
  void commit();

 private:
  struct Place {
    std::uint64_t offset = 0;
    std::int64_t elements = 0;
    std::size_t element_bytes = 0;
  };
  [[noreturn]] void refuse(const std::string& what) const;
  void write_bytes(std::uint64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  std::string temporary_;
  Role role_;
  int fd_ = -1;
  bool committed_ = false;
  std::map<std::string, Place> places_;
};

}  // namespace shardloss::files
