#include "safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "expect_error.hpp"
#include "safetensors_writer.hpp"

namespace shardloss::files {
namespace {

using test::expect_error;

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes,
                               std::uint64_t length) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(length >> (8 * i));
  std::memcpy(file.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) file[8 + header.size() + i] = std::byte(i);
  return file;
}

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  return file_of(header, data_bytes, header.size());
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, TensorsLieWhereTheOffsetsSay) {
  const auto file =
      file_of(R"({"__metadata__":{"format":"pt"},"b":)" + entry("I32", "[2]", "[12,20]") +
                  R"(,"a":)" + entry("F32", "[1,3]", "[0,12]") + "}   ",
              20);
  const std::vector<TensorEntry> tensors = parse_safetensors(file, "x");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(dtype_of(tensors[0]), DType::float32);
  EXPECT_EQ(tensors[0].bytes.size(), 12u);
  EXPECT_EQ(tensors[1].bytes.front(), std::byte{12});
  EXPECT_EQ(tensors[1].bytes.data() + tensors[1].bytes.size(), file.data() + file.size());
}

TEST(Safetensors, ScalarsAndEmptyTensorsAreTensors) {
  const auto file = file_of(
      R"({"s":)" + entry("F64", "[]", "[0,8]") + R"(,"e":)" + entry("F32", "[0,7]", "[8,8]") + "}",
      8);
  const std::vector<TensorEntry> tensors = parse_safetensors(file, "x");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_TRUE(tensors[0].shape.empty());
  EXPECT_TRUE(tensors[1].bytes.empty());
}

TEST(Safetensors, TypesThatAreNotComputedWithCanBeThere) {
  const auto tensors =
      parse_safetensors(file_of(R"({"f":)" + entry("F8_E4M3", "[4]", "[0,4]") + "}", 4), "x");
  EXPECT_FALSE(dtype_of(tensors.front()).has_value());
}

struct BadFile {
  const char* name;
  std::vector<std::byte> bytes;
};

TEST(Safetensors, BadFilesAreOneErrorThatNamesTheFile) {
  const std::string good = entry("F32", "[2]", "[0,8]");
  const std::string deep(100000, '[');
  const BadFile files[] = {
      {"empty", {}},
      {"seven bytes", std::vector<std::byte>(7)},
      {"no header", std::vector<std::byte>(8)},
      {"header past the end", file_of(R"({"a":)" + good + "}", 8, 1000)},
      {"header of 2^64 - 1", file_of("{}", 0, ~std::uint64_t{0})},
      {"header of 2^63", file_of("{}", 0, std::uint64_t{1} << 63)},
      {"not JSON", file_of("{this is not JSON}", 0)},
      {"an array", file_of("[]", 0)},
      {"a number", file_of("12", 0)},
      {"JSON cut off", file_of(R"({"a":{"dtype":"F32")", 0)},
      {"text behind the object", file_of(R"({"a":)" + good + "} x", 8)},
      {"a zero byte", file_of(std::string("{}\0{}", 5), 0)},
      {"nested", file_of(deep, 0)},
      {"nested in an entry", file_of(R"({"a":)" + deep, 0)},
      {"no dtype", file_of(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8)},
      {"no shape", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8)},
      {"no offsets", file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8)},
      {"shape a string", file_of(R"({"a":)" + entry("F32", "\"2\"", "[0,8]") + "}", 8)},
      {"shape negative", file_of(R"({"a":)" + entry("F32", "[-2]", "[0,8]") + "}", 8)},
      {"shape real", file_of(R"({"a":)" + entry("F32", "[2.0]", "[0,8]") + "}", 8)},
      {"shape past 63 bits",
       file_of(R"({"a":)" + entry("F32", "[9223372036854775808]", "[0,8]") + "}", 8)},
      {"shape that overflows",
       file_of(R"({"a":)" + entry("F32", "[4294967296,4294967296,4]", "[0,0]") + "}", 0)},
      {"seventeen dimensions",
       file_of(R"({"a":)" + entry("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4)},
      {"offsets past the end", file_of(R"({"a":)" + entry("F32", "[3]", "[0,12]") + "}", 8)},
      {"offsets backwards", file_of(R"({"a":)" + entry("F32", "[2]", "[8,0]") + "}", 8)},
      {"offsets of 2^64 - 1",
       file_of(
           R"({"a":)" + entry("F32", "[2]", "[18446744073709551608,18446744073709551615]") + "}",
           8)},
      {"three offsets", file_of(R"({"a":)" + entry("F32", "[2]", "[0,8,8]") + "}", 8)},
      {"one offset", file_of(R"({"a":)" + entry("F32", "[2]", "[0]") + "}", 8)},
      {"bytes that do not fit the shape",
       file_of(R"({"a":)" + entry("F32", "[3]", "[0,8]") + "}", 8)},
      {"a gap", file_of(R"({"a":)" + entry("F32", "[2]", "[4,12]") + "}", 12)},
      {"an overlap",
       file_of(R"({"a":)" + good + R"(,"b":)" + entry("F32", "[2]", "[4,12]") + "}", 12)},
      {"bytes left over", file_of(R"({"a":)" + good + "}", 9)},
      {"a name twice",
       file_of(R"({"a":)" + good + R"(,"a":)" + entry("F32", "[2]", "[8,16]") + "}", 16)},
      {"a field twice",
       file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)},
      {"an unknown field",
       file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":{}}})", 8)},
      {"metadata that is not strings", file_of(R"({"__metadata__":{"a":1}})", 0)},
      {"not UTF-8", file_of("{\"\xff\xfe\":" + good + "}", 8)},
  };
  for (const BadFile& bad : files) {
    SCOPED_TRACE(bad.name);
    expect_error(ErrorCode::invalid_argument, {"bad.safetensors"},
                 [&] { parse_safetensors(bad.bytes, "bad.safetensors"); });
  }
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

TEST(ShardIndex, NamesAFileForEachTensor) {
  const auto map = parse_shard_index(
      bytes_of(R"({"metadata":{"total_size":12},"weight_map":{"w":"a.safetensors","b":"c/d"}})"),
      "x");
  ASSERT_EQ(map.size(), 2u);
  EXPECT_EQ(map[0].first, "b");
  EXPECT_EQ(map[1].second, "a.safetensors");
}

TEST(ShardIndex, BadOnesAreOneErrorThatNamesTheFile) {
  for (const char* text :
       {"", "[]", "7", "{", R"({"x":1})", R"({"weight_map":{"w":7}})", R"({"weight_map":{"w":[]}})",
        R"({"weight_map":{"w":{}}})", R"({"weight_map":[]})", R"({"weight_map":"a"})",
        R"({"weight_map":{"w":""}})", R"({"weight_map":{"w":"/etc/passwd"}})",
        R"({"weight_map":{"w":"../x"}})", R"({"weight_map":{"w":"a/../../x"}})",
        R"({"weight_map":{"w":"a\u0000b"}})", R"({"weight_map":{"w":"a","w":"b"}})",
        R"({"weight_map":{},"weight_map":{}})"}) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::invalid_argument, {"bad.json"},
                 [&] { parse_shard_index(bytes_of(text), "bad.json"); });
  }
}

class InFolder : public testing::Test {
 protected:
  InFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "shardloss.XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    folder_ = path;
  }
  ~InFolder() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

TEST_F(InFolder, WhatIsWrittenIsRead) {
  const float values[6] = {0, 1, -2, 3.5F, -0.0F, 1e-40F};
  const std::int64_t count = 42;
  {
    SafetensorsWriter writer(
        path("t.safetensors"),
        {{"m", DType::float32, {2, 3}}, {"n", DType::int64, {}}, {"e", DType::bfloat16, {0, 3}}});
    writer.write("m", 3, 3, values + 3);
    writer.write("m", 0, 3, values);
    writer.write("n", &count);
    EXPECT_FALSE(std::filesystem::exists(path("t.safetensors"))) << "before it is complete";
    writer.close();
    writer.commit();
  }
  Checkpoint checkpoint(path("t.safetensors"));
  const TensorEntry& matrix = checkpoint.tensor("m");
  EXPECT_EQ(matrix.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(matrix.bytes.data(), values, sizeof values), 0);
  EXPECT_EQ(std::memcmp(checkpoint.tensor("n").bytes.data(), &count, 8), 0);
  EXPECT_TRUE(checkpoint.tensor("e").bytes.empty());
  expect_error(ErrorCode::invalid_argument, {"nothing", "t.safetensors"},
               [&] { checkpoint.tensor("nothing"); });
}

TEST_F(InFolder, AnIndexLeadsToTheFilesBesideIt) {
  const float value = 3;
  SafetensorsWriter writer(path("part.safetensors"), {{"w", DType::float32, {1}}});
  writer.write("w", &value);
  writer.close();
  writer.commit();
  std::ofstream(path("model.safetensors.index.json"))
      << R"({"weight_map":{"w":"part.safetensors","x":"gone.safetensors","y":"part.safetensors"}})";
  Checkpoint checkpoint(path("model.safetensors.index.json"));
  EXPECT_TRUE(checkpoint.has("w"));
  EXPECT_EQ(checkpoint.tensor("w").bytes.size(), 4u);
  expect_error(ErrorCode::invalid_argument, {"gone.safetensors"}, [&] { checkpoint.tensor("x"); });
  expect_error(ErrorCode::invalid_argument, {"y"}, [&] { checkpoint.tensor("y"); });
}

TEST_F(InFolder, WhatIsNoFileIsAnError) {
  expect_error(ErrorCode::invalid_argument, {"missing"}, [&] { Checkpoint(path("missing")); });
  expect_error(ErrorCode::invalid_argument, {path("")}, [&] { Checkpoint checkpoint(path("")); });
}

TEST_F(InFolder, WhatWasNotCommittedLeavesNothingBehind) {
  const float value = 3;
  {
    SafetensorsWriter writer(path("t.safetensors"), {{"w", DType::float32, {1}}});
    writer.write("w", &value);
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("")));
}

}  // namespace
}  // namespace shardloss::files
