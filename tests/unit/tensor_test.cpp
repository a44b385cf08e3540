#include "shardloss/tensor.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "shardloss/error.hpp"
#include "shardloss/problem.hpp"

namespace shardloss {
namespace {

TEST(Tensor, DefaultConstructedViewIsNotGiven) {
  EXPECT_FALSE(Tensor().given());
  EXPECT_FALSE(static_cast<bool>(ConstTensor()));
  EXPECT_FALSE(ConstTensor(Tensor()).given());
}

TEST(Tensor, MutableViewServesAsConstantOne) {
  float data[24] = {};
  const Tensor view(data, DType::float32, {4, 3}, {6, 1}, Device{DeviceKind::cuda, 1});
  const ConstTensor constant = view;
  EXPECT_TRUE(constant.given());
  EXPECT_EQ(constant.data(), data);
  EXPECT_EQ(constant.dims(), 2);
  EXPECT_EQ(constant.size(0), 4);
  EXPECT_EQ(constant.size(1), 3);
  EXPECT_EQ(constant.stride(0), 6);
  EXPECT_EQ(constant.stride(1), 1);
  EXPECT_EQ(constant.device(), (Device{DeviceKind::cuda, 1}));
}

TEST(Tensor, HelpersTakeTheDTypeOfTheElements) {
  double real = 0;
  const std::int32_t whole[5] = {};
  bfloat16 half[12] = {};
  EXPECT_EQ(scalar(&real).dtype(), DType::float64);
  EXPECT_EQ(scalar(&real).dims(), 0);
  EXPECT_EQ(vector(whole, 5).dtype(), DType::int32);
  EXPECT_EQ(vector(whole, 5).size(0), 5);
  EXPECT_EQ(matrix(half, 3, 4).dtype(), DType::bfloat16);
  EXPECT_EQ(matrix(half, 3, 4).stride(0), 4);
  EXPECT_EQ(matrix(half, 2, 4, 6).stride(0), 6);
}

TEST(Tensor, TextShowsDTypeSizesStridesAndDevice) {
  float data[24] = {};
  const std::string text = to_string(Tensor(data, DType::float32, {4, 3}, {6, 1}));
  EXPECT_EQ(text, "float32 [4, 3] strides [6, 1] on cpu");
  EXPECT_NE(to_string(ConstTensor()).find("not given"), std::string::npos);
}

TEST(DTypes, SizesAreThoseOfTheElements) {
  EXPECT_EQ(size_of(DType::float64), 8u);
  EXPECT_EQ(size_of(DType::float32), 4u);
  EXPECT_EQ(size_of(DType::bfloat16), 2u);
  EXPECT_EQ(size_of(DType::float16), 2u);
  EXPECT_EQ(size_of(DType::int64), 8u);
  EXPECT_EQ(size_of(DType::int32), 4u);
  EXPECT_EQ(size_of(DType::uint8), 1u);
}

TEST(DTypes, FloatingOnesAreTold) {
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    EXPECT_TRUE(is_floating(dtype)) << name(dtype);
  for (DType dtype : {DType::int64, DType::int32, DType::uint8})
    EXPECT_FALSE(is_floating(dtype)) << name(dtype);
}

template <class Enum>
void expect_distinct_names(int count) {
  std::set<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace(name(static_cast<Enum>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(names.count(""), 0u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Names, EveryEnumeratorHasItsOwn) {
  expect_distinct_names<DType>(7);
  expect_distinct_names<DeviceKind>(2);
  expect_distinct_names<ErrorCode>(8);
  expect_distinct_names<Layout>(2);
  expect_distinct_names<Reduction>(3);
  expect_distinct_names<Accumulation>(4);
  expect_distinct_names<SmoothingForm>(2);
  expect_distinct_names<GradDType>(3);
  expect_distinct_names<Chunking::Rule>(4);
}

TEST(Errors, TextBeginsWithTheCodesName) {
  const Error error(ErrorCode::mismatch, "vocab: rank 3 has 128257, rank 0 has 128256");
  EXPECT_STREQ(error.what(), "mismatch: vocab: rank 3 has 128257, rank 0 has 128256");
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_FALSE(error.fatal());
  EXPECT_TRUE(Error(ErrorCode::timeout, "x", true).fatal());
}

}  // namespace
}  // namespace shardloss
