#include "elements.hpp"

#include <cstring>

namespace shardloss::test {

void store(double value, DType dtype, void* to) {
  const double exact = rounded(value, dtype);
  switch (dtype) {
    case DType::float64: std::memcpy(to, &exact, 8); break;
    case DType::float32: {
      const auto single = static_cast<float>(exact);
      std::memcpy(to, &single, 4);
      break;
    }
    case DType::bfloat16: {
      const auto single = static_cast<float>(exact);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &single, 4);
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(to, &upper, 2);
      break;
    }
    case DType::float16: {
      const std::uint16_t bits = float16_bits(exact);
      std::memcpy(to, &bits, 2);
      break;
    }
    case DType::int64: {
      const auto whole = static_cast<std::int64_t>(value);
      std::memcpy(to, &whole, 8);
      break;
    }
    case DType::int32: {
      const auto whole = static_cast<std::int32_t>(value);
      std::memcpy(to, &whole, 4);
      break;
    }
    case DType::uint8: *static_cast<std::uint8_t*>(to) = static_cast<std::uint8_t>(value); break;
  }
}

double load(DType dtype, const void* from) {
  switch (dtype) {
    case DType::float64: {
      double value = 0;
      std::memcpy(&value, from, 8);
      return value;
    }
    case DType::float32: {
      float value = 0;
      std::memcpy(&value, from, 4);
      return static_cast<double>(value);
    }
    case DType::bfloat16: {
      std::uint16_t upper = 0;
      std::memcpy(&upper, from, 2);
      const std::uint32_t bits = static_cast<std::uint32_t>(upper) << 16;
      float value = 0;
      std::memcpy(&value, &bits, 4);
      return static_cast<double>(value);
    }
    case DType::float16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, 2);
      return float16_value(bits);
    }
    case DType::int64: {
      std::int64_t value = 0;
      std::memcpy(&value, from, 8);
      return static_cast<double>(value);
    }
    case DType::int32: {
      std::int32_t value = 0;
      std::memcpy(&value, from, 4);
      return value;
    }
    case DType::uint8: return *static_cast<const std::uint8_t*>(from);
  }
  return 0;
}

}  // namespace shardloss::test
