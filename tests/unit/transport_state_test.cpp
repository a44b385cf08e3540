// The sticky state, the record of steps and the 16-bit sums: what needs no peer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "elements.hpp"
#include "expect_error.hpp"
#include "scripted_transport.hpp"
#include "sum16.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(TransportState, InProgressThenDoneIsASuccess) {
  ScriptedTransport transport({Answer::in_progress, Answer::in_progress, Answer::done}, 5s);
  transport.wait(transport.all_reduce(nullptr, 4, DType::float32, {}), {});
  EXPECT_EQ(transport.looks(), 3);
  EXPECT_FALSE(transport.failed());
}

TEST(TransportState, InProgressThriceThenARemoteErrorFailsForGood) {
  ScriptedTransport transport(
      {Answer::in_progress, Answer::in_progress, Answer::in_progress, Answer::remote_error}, 5s);
  const Ticket ticket = transport.all_reduce(nullptr, 4, DType::float32, {});
  expect_error(ErrorCode::peer, {"the script says so"}, [&] { transport.wait(ticket, {}); });
  EXPECT_EQ(transport.looks(), 4);
  EXPECT_TRUE(transport.failed());
  const Traffic before = transport.traffic();
  expect_error(ErrorCode::peer, {"the script says so"},
               [&] { transport.all_reduce(nullptr, 4, DType::float32, {}); });
  EXPECT_EQ(transport.looks(), 4) << "a failed transport talks to nobody";
  EXPECT_EQ(transport.traffic().calls, before.calls);
}

TEST(TransportState, NothingButProgressIsATimeoutAtTheDeadline) {
  ScriptedTransport transport({}, 150ms);
  const Clock::time_point start = Clock::now();
  expect_error(ErrorCode::timeout, {"the script", "deadline"}, [&] {
    transport.wait(transport.all_gather(nullptr, std::vector<std::int64_t>{1, 1}, {}), {});
  });
  EXPECT_GE(Clock::now() - start, 150ms);
  EXPECT_LE(Clock::now() - start, 1650ms);
}

TEST(TransportState, TheFirstErrorCountsAndIsFatal) {
  ScriptedTransport transport({}, 1s);
  transport.check();
  const Error first = transport.fail(Error(ErrorCode::device, "first"));
  EXPECT_TRUE(first.fatal());
  EXPECT_EQ(std::string(first.what()), "device: first");
  const Error second = transport.fail(Error(ErrorCode::peer, "second", true));
  EXPECT_EQ(second.code(), ErrorCode::device);
  expect_error(ErrorCode::device, {"first"}, [&] { transport.check(); });
}

TEST(TransportState, AbortFromManyThreadsIsOneError) {
  ScriptedTransport transport({}, 20s);
  const Ticket ticket = transport.all_reduce(nullptr, 4, DType::float32, {});
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::this_thread::sleep_for(50ms);
      transport.abort();
    });
  }
  testing::internal::CaptureStderr();
  expect_error(ErrorCode::peer, {"abort()"}, [&] { transport.wait(ticket, {}); });
  for (std::thread& thread : threads) thread.join();
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
}

TEST(TransportState, AFatalErrorIsOneLineThatSaysWhoWhereAndWhat) {
  ScriptedTransport transport({}, 1s);
  transport.note_step("exchange", 17, 3);
  testing::internal::CaptureStderr();
  transport.fail(Error(ErrorCode::peer, "gone", true));
  transport.fail(Error(ErrorCode::peer, "gone again", true));
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  for (const char* part : {"rank 0 of 2", "scripted on cpu", "peer: gone", "call 17",
                           "step exchange", "chunk 3", " s since it began"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " is not in: " << line;
  }
}

TEST(TransportState, TheLast64StepsGoToTheFileThatIsAskedFor) {
  const std::string path = testing::TempDir() + "shardloss_steps_" + std::to_string(getpid());
  setenv("SHARDLOSS_STEP_LOG", path.c_str(), 1);
  ScriptedTransport transport({}, 1s);
  for (std::int64_t i = 0; i < 100; ++i) transport.note_step("step", 1, i);
  transport.fail(Error(ErrorCode::peer, "gone", true));
  unsetenv("SHARDLOSS_STEP_LOG");
  std::ifstream log(path + ".rank0");
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) lines.push_back(line);
  std::filesystem::remove(path + ".rank0");
  ASSERT_EQ(lines.size(), 2u + 64u);
  EXPECT_NE(lines[0].find("gone"), std::string::npos);
  EXPECT_NE(lines[2].find(" 1 36 step"), std::string::npos) << lines[2];
  EXPECT_NE(lines.back().find(" 1 99 step"), std::string::npos) << lines.back();
}

TEST(TransportState, AGroupOfOneServesAllDevicesAndSendsNothing) {
  const Communicator one = self();
  Transport& transport = one.transport();
  EXPECT_TRUE(transport.serves(DeviceKind::cpu));
  EXPECT_TRUE(transport.serves(DeviceKind::cuda));
  int value = 5;
  int all = 0;
  transport.exchange_host(&value, &all, sizeof value);
  EXPECT_EQ(all, 5);
  transport.wait(transport.all_reduce(&value, 1, DType::float32, {}), {});
  EXPECT_EQ(value, 5);
  EXPECT_EQ(transport.traffic().calls, 0);
  one.abort();
  EXPECT_TRUE(one.failed());
  expect_error(ErrorCode::peer, {"abort()"},
               [&] { transport.all_reduce(&value, 1, DType::float32, {}); });
}

TEST(Sum16, EveryFloat16ComesBackUnchanged) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = detail::widen_float16(half);
    const double value = float16_value(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(float16_value(detail::round_float16(wide))));
      continue;
    }
    EXPECT_EQ(wide, value) << bits;
    EXPECT_EQ(detail::round_float16(wide), half) << bits;
  }
}

TEST(Sum16, RoundingIsToNearestEven) {
  std::uint32_t state = 12345;
  for (int i = 0; i < 200000; ++i) {
    state = state * 1664525u + 1013904223u;
    const auto exponent = (state >> 8) % 48 + 95;  // 2^-32 .. 2^15 and past float16's range
    const float value = std::bit_cast<float>((state & 0x80000000u) | exponent << 23 |
                                             ((state * 2654435761u) & 0x7fffffu));
    const double wanted16 = rounded(value, DType::float16);
    EXPECT_EQ(float16_value(detail::round_float16(value)), wanted16) << value;
    EXPECT_EQ(detail::widen_bfloat16(detail::round_bfloat16(value)),
              rounded(value, DType::bfloat16))
        << value;
  }
}

}  // namespace
}  // namespace shardloss::test
