// Any bytes give Error(invalid_argument), or file names that stay in the folder of the index.
#include <cstdint>
#include <cstdlib>

#include "safetensors.hpp"
#include "shardloss/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> json(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& [name, file] : shardloss::files::parse_shard_index(json, "fuzz")) {
      const bool leaves = file.empty() || file.front() == '/' || file == ".." ||
                          file.starts_with("../") || file.find("/../") != std::string::npos ||
                          file.ends_with("/..") || file.find('\0') != std::string::npos;
      if (leaves) std::abort();
    }
  } catch (const shardloss::Error& error) {
    if (error.code() != shardloss::ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
