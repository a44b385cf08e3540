/// \file
/// One thread a process that ends device groups whose calls outlast the deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "shardloss/communicator.hpp"

namespace shardloss::detail {

/// A group that the watchdog looks after. Its calls never block.
class Watched {
 public:
  virtual ~Watched() = default;
  /// How long a call on the device may take.
  virtual std::chrono::milliseconds patience() const noexcept = 0;
  /// What the library underneath has to report by itself.
  virtual std::optional<Error> asynchronous_error() = 0;
  /// Records the error and begins to abort what is outstanding.
  virtual void end(const Error& error) = 0;
};

/// Looks at all groups of the process and their mailboxes every `period`. A group ends when a
/// mailbox shows a call that has not ended within the deadline, or a disagreement that leaves the
/// ranks' collectives unequal, or when the library underneath reports an error. Groups that are
/// found failing together are ended together: with several communicators on one device, aborting
/// one after another can deadlock.
///
/// The thread lives while there is a group. All functions may be called from any thread, but not
/// from a Watched.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds period = std::chrono::milliseconds(20));
  ~Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The process's own. Never destroyed: its users may live until the end.
  static Watchdog& of_process();

  void add(Watched& group);
  /// On return neither `group` nor its mailboxes are touched any more.
  void remove(Watched& group);
  void watch(Watched& group, Mailbox& mailbox);
  void unwatch(Watched& group, Mailbox& mailbox);

  /// Raises `aborted` in the group's mailboxes, now and for later ones, and ends it.
  void end(Watched& group, const Error& error);

 private:
  using Clock = std::chrono::steady_clock;
  struct Box {
    Mailbox* mailbox = nullptr;
    std::uint64_t call = 0;  // that was seen running, 0: none
    Clock::time_point since;
  };
  struct Entry {
    Watched* group = nullptr;
    std::vector<Box> boxes;
    bool ended = false;
  };

  void run(const std::stop_token& stop);
  void look(Clock::time_point now);
  static std::optional<Error> trouble(Entry& entry, Clock::time_point now);
  static std::optional<Error> overdue(Box& box, Clock::time_point now,
                                      std::chrono::milliseconds patience);
  static void end(Entry& entry, const Error& error);
  Entry* find(const Watched& group);

  std::chrono::milliseconds period_;
  std::mutex mutex_;  // guards entries_, thread_
  std::condition_variable_any wake_;
  std::list<Entry> entries_;
  std::jthread thread_;
};

}  // namespace shardloss::detail
