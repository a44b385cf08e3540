/// \file
/// A transport and a watched group whose answers are written down beforehand.
#pragma once

#include <chrono>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "poll.hpp"
#include "shardloss/communicator.hpp"
#include "watchdog.hpp"

namespace shardloss::test {

/// What the library underneath says when it is asked once.
enum class Answer { in_progress, done, remote_error };

/// Rank 0 of two. Each look at the outstanding collective takes the next answer; after the last one
/// it stays in progress.
class ScriptedTransport final : public Transport {
 public:
  ScriptedTransport(std::initializer_list<Answer> answers, std::chrono::milliseconds deadline)
      : Transport(0, 2, deadline), answers_(answers) {}

  bool serves(DeviceKind kind) const noexcept override { return kind == DeviceKind::cpu; }
  std::string_view kind() const noexcept override { return "scripted"; }
  void exchange_host(const void*, void*, std::size_t) override { wait(start(0), {}); }
  Ticket all_gather(void*, std::span<const std::int64_t> bytes, Stream) override {
    return start(bytes.front());
  }
  Ticket all_reduce(void*, std::int64_t elements, DType dtype, Stream) override {
    return start(elements * static_cast<std::int64_t>(size_of(dtype)));
  }
  Ticket reduce_scatter(void*, std::span<const std::int64_t>, DType, Stream) override {
    return start(0);
  }
  void wait(Ticket, Stream) override {
    check();
    detail::poll(*this, "the script", [this] { return look(); });
  }

  /// Looks so far.
  int looks() const { return looks_; }

 private:
  Ticket start(std::int64_t bytes) {
    check();
    count(bytes);
    return {++last_id_};
  }

  bool look() {
    ++looks_;
    if (answers_.empty()) return false;
    const Answer answer = answers_.front();
    answers_.pop_front();
    if (answer == Answer::remote_error)
      throw fail(Error(ErrorCode::peer, "the script says so", true));
    return answer == Answer::done;
  }

  std::deque<Answer> answers_;
  std::uint64_t last_id_ = 0;
  int looks_ = 0;
};

/// A group under a watchdog's eyes that remembers how it ended.
class ScriptedGroup final : public detail::Watched {
 public:
  ScriptedGroup(std::initializer_list<Answer> answers, std::chrono::milliseconds patience)
      : patience_(patience), answers_(answers) {}

  std::chrono::milliseconds patience() const noexcept override { return patience_; }

  std::optional<Error> asynchronous_error() override {
    const std::scoped_lock lock(mutex_);
    ++looks_;
    if (answers_.empty()) return std::nullopt;
    const Answer answer = answers_.front();
    answers_.pop_front();
    if (answer != Answer::remote_error) return std::nullopt;
    return Error(ErrorCode::peer, "the script says so", true);
  }

  void end(const Error& error) override {
    const std::scoped_lock lock(mutex_);
    ended_at_.push_back(std::chrono::steady_clock::now());
    if (!error_) error_ = error;
    changed_.notify_all();
  }

  /// The error it ended with, after at most `bound`.
  std::optional<Error> ended_within(std::chrono::milliseconds bound) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, bound, [this] { return error_.has_value(); });
    return error_;
  }
  int looks() {
    const std::scoped_lock lock(mutex_);
    return looks_;
  }
  std::vector<std::chrono::steady_clock::time_point> ended_at() {
    const std::scoped_lock lock(mutex_);
    return ended_at_;
  }

 private:
  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Answer> answers_;
  std::optional<Error> error_;
  std::vector<std::chrono::steady_clock::time_point> ended_at_;
  int looks_ = 0;
};

}  // namespace shardloss::test
