/// \file
/// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace shardloss::files {

/// The bytes of a regular file. Pages come in when they are touched; pointers are good as long as
/// this lives.
class MappedFile {
 public:
  /// Throws Error(invalid_argument) where the path does not name a readable regular file.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

  /// Lets the pages that lie wholly within `part` of bytes() go out of memory; they come back when
  /// touched.
  void release(std::span<const std::byte> part) const noexcept;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace shardloss::files
