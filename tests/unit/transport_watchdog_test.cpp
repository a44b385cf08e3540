// The watchdog over groups whose answers are written down beforehand.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agreement.hpp"
#include "scripted_transport.hpp"

namespace shardloss::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

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

/// A disagreement as a device would leave it.
struct Found {
  std::uint32_t field;
  std::uint64_t value, other_value;
};

void leave(const Found& found, Mailbox& box) {
  box.other_rank = 3;
  box.value = found.value;
  box.other_value = found.other_value;
  std::atomic_ref(box.disagreement).store(found.field);
}

constexpr std::uint32_t verdict_field = 1;
constexpr std::uint32_t rows_field = 1 + offsetof(detail::CallHeader, rows) / sizeof(std::uint64_t);

TEST_F(WatchdogTest, EndsOnADisagreementThatLeavesCollectivesUnequal) {
  std::vector<Found> all = {{rows_field, detail::hashed_rows | 4, detail::hashed_rows | 0xabcdef},
                            {verdict_field, 0, detail::given_up}};
  for (std::uint32_t field = 2; field < detail::agreed_words; ++field) all.push_back({field, 4, 5});
  for (const Found& found : all) {
    Mailbox box{};
    ScriptedGroup other({}, 20s);
    watchdog.add(other);
    watchdog.watch(other, box);
    leave(found, box);
    const auto error = other.ended_within(slack);
    watchdog.remove(other);
    ASSERT_TRUE(error) << found.field;
    const Error said = detail::disagreement(found.field, 3, found.value, found.other_value);
    EXPECT_STREQ(error->what(), said.what());
    EXPECT_EQ(error->code(), said.code());
    EXPECT_TRUE(error->fatal());
    EXPECT_EQ(std::atomic_ref(box.aborted).load(), 1u);
  }
}

TEST_F(WatchdogTest, LeavesDifferingTargetsToWait) {
  begin();
  leave({detail::agreed_words, 4, 5}, mailbox);
  EXPECT_FALSE(detail::disagreement(detail::agreed_words, 3, 4, 5).fatal());
  EXPECT_FALSE(group->ended_within(100ms));
}

TEST_F(WatchdogTest, LeavesAGroupAloneForAFieldThatDoesNotExist) {
  begin();
  leave({detail::agreed_words + 1, 4, 5}, mailbox);
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
  threads.reserve(4);
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

}  // namespace
}  // namespace shardloss::test
