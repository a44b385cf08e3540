// Every 16-bit value, and every border between two of them, against arithmetic that knows nothing
// of bit patterns.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/convert.hpp"
#include "elements.hpp"

namespace shardloss::test {
namespace {

using detail::cpu::from_real;
using detail::cpu::to_real;

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  return patterns;
}

template <class Real>
std::vector<std::uint16_t> stored(const std::vector<Real>& values, DType dtype) {
  std::vector<std::uint16_t> bits(values.size());
  from_real(values.data(), static_cast<std::int64_t>(values.size()), dtype, bits.data());
  return bits;
}

class Conversions : public testing::TestWithParam<DType> {};

TEST_P(Conversions, EveryValueWidensExactly) {
  const std::vector<std::uint16_t> bits = all_patterns();
  std::vector<float> values(bits.size());
  to_real(GetParam(), bits.data(), 65536, values.data());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const double want = load(GetParam(), &bits[i]);
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(values[i])) << i;
    else
      EXPECT_EQ(static_cast<double>(values[i]), want) << i;
  }
}

TEST_P(Conversions, EveryValueSurvivesTheWayThereAndBack) {
  const std::vector<std::uint16_t> bits = all_patterns();
  std::vector<float> values(bits.size());
  to_real(GetParam(), bits.data(), 65536, values.data());
  const std::vector<std::uint16_t> back = stored(values, GetParam());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (std::isnan(values[i]))
      EXPECT_TRUE(std::isnan(load(GetParam(), &back[i]))) << i;
    else
      EXPECT_EQ(back[i], bits[i]) << i;
  }
}

TEST_P(Conversions, RoundToNearestTiesToEven) {
  // Both neighbours' middle, and one float beside it on either side.
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 65535; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const double a = load(GetParam(), &low);
    const double b = load(GetParam(), &high);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    const auto middle = static_cast<float>((a + b) / 2);
    for (float value : {middle, std::nextafter(middle, 0.0F),
                        std::nextafter(middle, std::copysign(1e38F, middle))})
      values.push_back(value);
  }
  for (float limit : {65504.0F, 65519.99F, 65520.0F, 1e6F, 3.3895e38F, 3.4e38F,
                      std::numeric_limits<float>::infinity(), 0.0F, 1e-45F, 2e-8F}) {
    values.push_back(limit);
    values.push_back(-limit);
  }
  const std::vector<std::uint16_t> bits = stored(values, GetParam());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t want = 0;
    store(static_cast<double>(values[i]), GetParam(), &want);
    ASSERT_EQ(bits[i], want) << values[i];
  }
}

TEST_P(Conversions, NaNStaysNaN) {
  for (std::uint32_t pattern : {0x7f800001U, 0x7fc00000U, 0xffffffffU, 0xff800001U, 0x7fffffffU}) {
    float value = 0;
    std::memcpy(&value, &pattern, sizeof value);
    const std::vector<std::uint16_t> bits = stored(std::vector<float>(19, value), GetParam());
    for (const std::uint16_t element : bits)
      EXPECT_TRUE(std::isnan(load(GetParam(), &element))) << std::hex << pattern;
  }
}

TEST_P(Conversions, TailsOfAnyLengthAreConverted) {
  for (std::size_t n = 0; n < 40; ++n) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i) - 7.5F;
    std::vector<std::uint16_t> bits(n + 1, 0xabcd);
    from_real(values.data(), static_cast<std::int64_t>(n), GetParam(), bits.data());
    EXPECT_EQ(bits[n], 0xabcd);
    for (std::size_t i = 0; i < n; ++i)
      EXPECT_EQ(load(GetParam(), &bits[i]), static_cast<double>(values[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Short, Conversions, testing::Values(DType::bfloat16, DType::float16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

}  // namespace
}  // namespace shardloss::test
