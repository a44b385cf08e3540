// Any bytes give Error(invalid_argument), or tensors that lie within the file and fit their shape.
#include <cstdint>
#include <cstdlib>

#include "safetensors.hpp"
#include "shardloss/error.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    std::size_t total = 0;
    for (const auto& entry : shardloss::files::parse_safetensors(file, "fuzz")) {
      total += entry.bytes.size();
      unsigned sum = 0;
      for (const std::byte byte : entry.bytes) sum += std::to_integer<unsigned>(byte);
      require(sum <= 255 * entry.bytes.size());
      if (const auto dtype = shardloss::files::dtype_of(entry)) {
        std::size_t bytes = shardloss::size_of(*dtype);
        for (const std::int64_t dim : entry.shape) bytes *= static_cast<std::size_t>(dim);
        require(bytes == entry.bytes.size());
      }
      require(!shardloss::files::describe(entry).empty());
    }
    require(total < size);
  } catch (const shardloss::Error& error) {
    require(error.code() == shardloss::ErrorCode::invalid_argument);
  }
  return 0;
}
