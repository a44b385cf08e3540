// The cache file of timed algorithms. Each process reads it once, so each part of a test is one.
#include "cuda/gemm_cache.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace shardloss::detail::cuda {
namespace {

class GemmCache : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "gemm_cache_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    ASSERT_EQ(setenv("SHARDLOSS_GEMM_CACHE", file().c_str(), 1), 0);
  }
  void TearDown() override {
    unsetenv("SHARDLOSS_GEMM_CACHE");
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path file() const { return folder_ / "cache.json"; }

  // The child's verdict; a child that throws has none.
  static pid_t start(const std::function<bool()>& part) {
    const pid_t child = fork();
    if (child != 0) return child;
    try {
      _exit(part() ? 0 : 1);
    } catch (const std::exception&) {
      _exit(2);
    }
  }
  static int ended(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static int in_a_process(const std::function<bool()>& part) { return ended(start(part)); }

  static GemmAlgorithm algorithm(std::uint64_t number) {
    GemmAlgorithm one;
    for (std::uint64_t& word : one.algorithm.data) word = number * 0x9e3779b97f4a7c15ULL;
    one.text = "algorithm " + std::to_string(number);
    return one;
  }

  static bool has(std::uint64_t number) {
    const auto found = find_cached("key " + std::to_string(number));
    const GemmAlgorithm wanted = algorithm(number);
    return found && found->text == wanted.text + ", from the cache" &&
           std::equal(std::begin(wanted.algorithm.data), std::end(wanted.algorithm.data),
                      std::begin(found->algorithm.data));
  }

  static bool keep(std::uint64_t first, std::uint64_t past) {
    for (std::uint64_t number = first; number < past; ++number)
      keep_cached("key " + std::to_string(number), algorithm(number));
    return true;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(GemmCache, AnotherProcessFindsWhatOneKept) {
  EXPECT_EQ(in_a_process([] { return keep(1, 3); }), 0);
  EXPECT_EQ(in_a_process([] { return has(1) && has(2) && !find_cached("key 3"); }), 0);
}

TEST_F(GemmCache, NothingIsLostWhereProcessesWriteAtOnce) {
  constexpr std::uint64_t each = 40;
  std::vector<pid_t> writers;
  for (std::uint64_t first : {0, 1, 2, 3})
    writers.push_back(start([=] { return keep(first * each, (first + 1) * each); }));
  for (const pid_t writer : writers) EXPECT_EQ(ended(writer), 0);
  EXPECT_EQ(in_a_process([] {
              for (std::uint64_t number = 0; number < 4 * each; ++number)
                if (!has(number)) return false;
              return true;
            }),
            0);
}

TEST_F(GemmCache, WhatIsNotACacheIsRefused) {
  std::ofstream(file()) << "[1, 2";
  EXPECT_EQ(in_a_process([] {
              try {
                find_cached("key 1");
              } catch (const Error& error) {
                return error.code() == ErrorCode::invalid_argument;
              }
              return false;
            }),
            0);
}

TEST_F(GemmCache, EntriesThatMakeNoSenseAreLeftOut) {
  EXPECT_EQ(in_a_process([] { return keep(1, 2); }), 0);
  std::string content;
  {
    std::ifstream in(file());
    content.assign(std::istreambuf_iterator<char>(in), {});
  }
  content.replace(content.find('{'), 1,
                  R"({"key 2": {"algorithm": "12", "text": "short"}, "key 3": 7, )");
  std::ofstream(file()) << content;
  EXPECT_EQ(in_a_process([] { return has(1) && !find_cached("key 2") && !find_cached("key 3"); }),
            0);
}

}  // namespace
}  // namespace shardloss::detail::cuda
