// The sticky state, the record of steps, the watchdog and the 16-bit sums: what needs no peer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "agreement.hpp"
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

constexpr auto patience = 200ms;
constexpr auto slack = 1500ms;

/// A watchdog with one group and one mailbox.
class WatchdogTest : public testing::Test {
 protected:
  void begin(std::initializer_list<Answer> answers = {}) {
    group.emplace(answers, patience);
    watchdog.add(*group);
    watchdog.watch(*group, mailbox);
  }
  void TearDown() override {
    if (group) watchdog.remove(*group);
  }

  template <class T, class U>
  static void set(T& field, U value) {
    std::atomic_ref<T>(field).store(static_cast<T>(value));
  }
  std::uint32_t aborted() { return std::atomic_ref(mailbox.aborted).load(); }

  Mailbox mailbox{};
  detail::Watchdog watchdog{5ms};
  std::optional<ScriptedGroup> group;
};

TEST_F(WatchdogTest, LeavesAnIdleGroupAlone) {
  begin();
  set(mailbox.started, 4);
  set(mailbox.finished, 4);
  EXPECT_FALSE(group->ended_within(patience * 2));
  EXPECT_EQ(aborted(), 0u);
  EXPECT_GT(group->looks(), 5);
}

TEST_F(WatchdogTest, EndsACallThatOutlastsTheDeadline) {
  begin();
  set(mailbox.started, 5);
  set(mailbox.finished, 4);
  set(mailbox.step, 2);
  const Clock::time_point start = Clock::now();
  const auto error = group->ended_within(patience + slack);
  ASSERT_TRUE(error);
  EXPECT_GE(Clock::now() - start, patience);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_TRUE(error->fatal());
  EXPECT_NE(std::string(error->what()).find("call 5"), std::string::npos) << error->what();
  EXPECT_NE(std::string(error->what()).find("chunk 2"), std::string::npos) << error->what();
  EXPECT_EQ(aborted(), 1u);
}

TEST_F(WatchdogTest, StepsDoNotExtendTheDeadlineOfACall) {
  begin();
  set(mailbox.started, 1);
  const Clock::time_point start = Clock::now();
  std::uint64_t step = 0;
  while (!group->ended_within(10ms) && Clock::now() - start < 10 * patience)
    set(mailbox.step, ++step);
  EXPECT_LE(Clock::now() - start, patience + slack);
}

TEST_F(WatchdogTest, ManyShortCallsAreNotOneLongOne) {
  begin();
  const Clock::time_point start = Clock::now();
  for (std::uint64_t call = 1; Clock::now() - start < 3 * patience; ++call) {
    set(mailbox.started, call);
    std::this_thread::sleep_for(10ms);
    set(mailbox.finished, call);
  }
  EXPECT_FALSE(group->ended_within(1ms));
}

TEST_F(WatchdogTest, EndsOnAnErrorOfTheLibraryUnderneath) {
  begin({Answer::in_progress, Answer::in_progress, Answer::in_progress, Answer::remote_error});
  const auto error = group->ended_within(slack);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::peer);
  EXPECT_EQ(aborted(), 1u);
  EXPECT_EQ(group->looks(), 4);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(group->ended_at().size(), 1u) << "a group ends once";
}

TEST_F(WatchdogTest, SaysOfADisagreementWhatTheLibrarySays) {
  for (std::uint32_t field = 2; field < detail::agreed_words; ++field) {
    Mailbox box{};
    ScriptedGroup other({}, 20s);
    watchdog.add(other);
    watchdog.watch(other, box);
    box.other_rank = 3;
    box.value = 4;
    box.other_value = 5;
    set(box.disagreement, field);
    const auto error = other.ended_within(slack);
    watchdog.remove(other);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(std::string(error->what()), detail::disagreement(field, 3, 4, 5).what());
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
  }
}

TEST_F(WatchdogTest, EndsOnArgumentsThatARankRefused) {
  begin();
  mailbox.other_rank = 1;
  mailbox.other_value = 1;
  set(mailbox.disagreement, 1u);
  const auto error = group->ended_within(slack);
  ASSERT_TRUE(error);
  EXPECT_EQ(std::string(error->what()), detail::disagreement(1, 1, 0, 1).what());
}

TEST_F(WatchdogTest, LeavesDifferingTargetsToWait) {
  begin();
  set(mailbox.disagreement, static_cast<std::uint32_t>(detail::agreed_words));
  EXPECT_FALSE(detail::disagreement(detail::agreed_words, 1, 0, 1).fatal());
  EXPECT_FALSE(group->ended_within(100ms));
}

TEST_F(WatchdogTest, EndsFailingGroupsTogether) {
  begin();
  Mailbox second_box{};
  ScriptedGroup second({}, patience);
  ScriptedGroup healthy({}, patience);
  watchdog.add(second);
  watchdog.add(healthy);
  watchdog.watch(second, second_box);
  set(mailbox.started, 1);
  set(second_box.started, 1);
  ASSERT_TRUE(group->ended_within(patience + slack));
  ASSERT_TRUE(second.ended_within(slack));
  const auto apart = second.ended_at().front() - group->ended_at().front();
  EXPECT_LT(std::chrono::abs(apart), 100ms);
  EXPECT_FALSE(healthy.ended_within(50ms));
  watchdog.remove(second);
  watchdog.remove(healthy);
}

TEST_F(WatchdogTest, AMailboxOfAnEndedGroupIsAbortedFromTheStart) {
  begin();
  watchdog.end(*group, Error(ErrorCode::peer, "abort", true));
  EXPECT_EQ(aborted(), 1u);
  Mailbox late{};
  watchdog.watch(*group, late);
  EXPECT_EQ(late.aborted, 1u);
}

TEST_F(WatchdogTest, AForgottenMailboxIsNotTouched) {
  begin();
  set(mailbox.started, 1);
  watchdog.unwatch(*group, mailbox);
  EXPECT_FALSE(group->ended_within(2 * patience));
  watchdog.end(*group, Error(ErrorCode::peer, "abort", true));
  EXPECT_EQ(aborted(), 0u);
}

TEST_F(WatchdogTest, GroupsComeAndGoFromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 100; ++i) {
        Mailbox box{};
        ScriptedGroup one({Answer::in_progress}, 20s);
        watchdog.add(one);
        watchdog.watch(one, box);
        if (i % 2 == 0) watchdog.end(one, Error(ErrorCode::peer, "abort", true));
        watchdog.unwatch(one, box);
        watchdog.remove(one);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
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
