/// \file
/// A transport that delays collectives, or misbehaves once at a chosen step.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forwarding_transport.hpp"
#include "shardloss/communicator.hpp"

namespace shardloss::test {

/// What one rank does wrong.
enum class Misdeed {
  none,
  fail,   ///< a fatal error of its own: it leaves the call and starts nothing more
  skip,   ///< leaves out one collective and goes on
  alter,  ///< takes part in one collective with half of the elements
  sleep,  ///< stands still for Fault::duration
  stop,   ///< SIGSTOP: the whole process stands still for Fault::duration
  kill,   ///< SIGKILL
};

/// One misdeed: at the first step of that name (any name where empty) that belongs to `chunk` (any
/// where negative), or at a collective, counted from 0, where `collective` is not negative. At a
/// step, `fail`, `skip` and `alter` befall the next collective.
struct Fault {
  Misdeed misdeed = Misdeed::none;
  std::string step{};
  std::int64_t chunk = -1;
  std::int64_t collective = -1;
  std::chrono::milliseconds duration{0};
};

class FaultyTransport final : public launch::ForwardingTransport {
 public:
  /// `delay`: no collective is complete sooner than that after its start.
  explicit FaultyTransport(Communicator inner, Fault fault = {},
                           std::chrono::milliseconds delay = std::chrono::milliseconds(0))
      : ForwardingTransport(std::move(inner)), fault_(std::move(fault)), delay_(delay) {}

  /// Collectives started so far.
  std::int64_t collectives() const { return collectives_; }
  /// Whether the misdeed has been done.
  bool done() const { return done_; }

  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override {
    const auto own = static_cast<std::size_t>(rank());
    return start([&](bool altered) {
      std::vector<std::int64_t> sizes(bytes.begin(), bytes.end());
      if (altered) sizes[own] /= 2;
      return to().all_gather(data, sizes, compute);
    });
  }

  Ticket all_reduce(void* data, std::int64_t elements, DType dtype, Stream compute) override {
    return start([&](bool altered) {
      return to().all_reduce(data, altered ? elements / 2 : elements, dtype, compute);
    });
  }

  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override {
    return start([&](bool altered) {
      std::vector<std::int64_t> sizes(counts.begin(), counts.end());
      if (altered) {
        for (std::int64_t& size : sizes) size /= 2;
      }
      return to().reduce_scatter(data, sizes, dtype, compute);
    });
  }

  void wait(Ticket ticket, Stream compute) override {
    if (ticket.id == 0) return check();
    const auto found = started_.find(ticket.id);
    const auto [inner_ticket, due] = found->second;
    started_.erase(found);
    while (std::chrono::steady_clock::now() < due) {
      to().progress();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    to().wait(inner_ticket, compute);
  }

  void note_step(const char* name, std::uint64_t call, std::int64_t chunk) noexcept override {
    to().note_step(name, call, chunk);
    const bool here = fault_.collective < 0 && (fault_.step.empty() || fault_.step == name) &&
                      (fault_.chunk < 0 || fault_.chunk == chunk);
    if (!here || done_ || fault_.misdeed == Misdeed::none) return;
    if (!misbehave_in_time()) next_ = true;
  }

 private:
  // Sleep, stop and kill happen here and now; false: it is a misdeed of a collective.
  bool misbehave_in_time() noexcept {
    if (fault_.misdeed == Misdeed::sleep) {
      done_ = true;
      std::this_thread::sleep_for(fault_.duration);
    } else if (fault_.misdeed == Misdeed::stop) {
      done_ = true;
      stop_process();
    } else if (fault_.misdeed == Misdeed::kill) {
      (void)std::raise(SIGKILL);
    } else {
      return false;
    }
    return true;
  }

  // Somebody else has to continue this process: a child, which does nothing but sleep.
  void stop_process() noexcept {
    const pid_t child = fork();
    if (child == 0) {
      std::this_thread::sleep_for(fault_.duration);
      (void)::kill(getppid(), SIGCONT);
      _exit(0);
    }
    (void)std::raise(SIGSTOP);
    (void)waitpid(child, nullptr, 0);
  }

  template <class Collective>
  Ticket start(const Collective& collective) {
    check();
    bool hit = !done_ && (next_ || fault_.collective == collectives_);
    ++collectives_;
    if (hit && misbehave_in_time()) hit = false;
    if (hit) done_ = true;
    if (hit && fault_.misdeed == Misdeed::fail)
      throw fail(Error(ErrorCode::internal, "injected into rank " + std::to_string(rank()), true));
    if (hit && fault_.misdeed == Misdeed::skip) return {};
    const Ticket ticket = collective(hit && fault_.misdeed == Misdeed::alter);
    if (ticket.id == 0) return {};
    started_[++last_id_] = {ticket, std::chrono::steady_clock::now() + delay_};
    return {last_id_};
  }

  Fault fault_;
  std::chrono::milliseconds delay_;
  std::int64_t collectives_ = 0;
  bool next_ = false;
  bool done_ = false;
  std::map<std::uint64_t, std::pair<Ticket, std::chrono::steady_clock::time_point>> started_;
  std::uint64_t last_id_ = 0;
};

}  // namespace shardloss::test
