#include "watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

namespace shardloss::detail {
namespace {

// Mailboxes are written by the device at any time.
template <class T>
T read(T& field) {
  return std::atomic_ref<T>(field).load(std::memory_order_acquire);
}

}  // namespace

Watchdog::Watchdog(std::chrono::milliseconds period) : period_(period) {}

Watchdog& Watchdog::of_process() {
  static auto& watchdog = *new Watchdog;
  return watchdog;
}

Watchdog::Entry* Watchdog::find(const Watched& group) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.group == &group; });
  return found == entries_.end() ? nullptr : &*found;
}

void Watchdog::add(Watched& group) {
  const std::scoped_lock lock(mutex_);
  entries_.push_back({&group, {}, false});
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
}

void Watchdog::remove(Watched& group) {
  std::jthread idle;
  {
    const std::scoped_lock lock(mutex_);
    entries_.remove_if([&](const Entry& entry) { return entry.group == &group; });
    if (entries_.empty()) idle = std::move(thread_);
  }
  // Stopped and joined here, without the lock.
}

void Watchdog::watch(Watched& group, Mailbox& mailbox) {
  const std::scoped_lock lock(mutex_);
  Entry* const entry = find(group);
  if (entry == nullptr) return;
  entry->boxes.push_back({&mailbox, 0, {}});
  if (entry->ended) std::atomic_ref(mailbox.aborted).store(1, std::memory_order_release);
}

void Watchdog::unwatch(Watched& group, Mailbox& mailbox) {
  const std::scoped_lock lock(mutex_);
  Entry* const entry = find(group);
  if (entry == nullptr) return;
  std::erase_if(entry->boxes, [&](const Box& box) { return box.mailbox == &mailbox; });
}

void Watchdog::end(Watched& group, const Error& error) {
  const std::scoped_lock lock(mutex_);
  if (Entry* const entry = find(group)) end(*entry, error);
}

void Watchdog::end(Entry& entry, const Error& error) {
  entry.ended = true;
  for (const Box& box : entry.boxes) {
    std::atomic_ref(box.mailbox->aborted).store(1, std::memory_order_release);
  }
  entry.group->end(error);
}

void Watchdog::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    look(Clock::now());
    wake_.wait_for(lock, stop, period_, [] { return false; });
  }
}

void Watchdog::look(Clock::time_point now) {
  std::vector<std::pair<Entry*, Error>> failing;
  for (Entry& entry : entries_) {
    if (entry.ended) continue;
    if (const auto error = trouble(entry, now)) failing.emplace_back(&entry, *error);
  }
  for (const auto& [entry, error] : failing) end(*entry, error);
}

std::optional<Error> Watchdog::trouble(Entry& entry, Clock::time_point now) {
  if (auto error = entry.group->asynchronous_error()) return error;
  for (Box& box : entry.boxes) {
    if (auto error = disagreement_in(*box.mailbox); error && error->fatal()) return error;
    if (auto error = overdue(box, now, entry.group->patience())) return error;
  }
  return std::nullopt;
}

// The clock runs from the first look that saw the call, whatever its chunks do meanwhile: the call
// as a whole is bounded.
std::optional<Error> Watchdog::overdue(Box& box, Clock::time_point now,
                                       std::chrono::milliseconds patience) {
  const std::uint64_t finished = read(box.mailbox->finished);
  const std::uint64_t started = read(box.mailbox->started);
  if (started == finished) {
    box.call = 0;
    return std::nullopt;
  }
  if (box.call != started) {
    box.call = started;
    box.since = now;
  }
  if (now - box.since <= patience) return std::nullopt;
  char text[160];
  std::snprintf(text, sizeof text,
                "call %llu has been on the device for %.2f s, the deadline is %.2f s; chunk %llu "
                "was combined last",
                static_cast<unsigned long long>(started),
                std::chrono::duration<double>(now - box.since).count(),
                std::chrono::duration<double>(patience).count(),
                static_cast<unsigned long long>(read(box.mailbox->step)));
  return Error(ErrorCode::timeout, text, true);
}

}  // namespace shardloss::detail
