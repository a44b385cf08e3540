#include "watchdog.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <utility>

namespace shardloss::detail {
namespace {

// Mailboxes are written by the device at any time.
template <class T>
T read(T& field) {
  return std::atomic_ref<T>(field).load(std::memory_order_acquire);
}

// The words of a call on which ranks must agree, by Mailbox::disagreement - 1. lib numbers them; a
// test holds the two lists together.
constexpr std::array<const char*, 9> agreed = {"arguments",         "object",        "call number",
                                               "operation",         "chunk",         "rows",
                                               "requested outputs", "saved forward", "targets"};
constexpr std::uint32_t differing_verdicts = 1;
constexpr std::uint32_t differing_rows = 6;
constexpr std::uint32_t differing_targets = 9;
// In a word of rows: the others are a hash of rows_per_rank.
constexpr std::uint64_t hashed_rows = std::uint64_t{1} << 63;
// A verdict: the rank's host has aborted the call. Others: it refused its arguments.
constexpr std::uint64_t given_up = 2;

std::string print(std::uint64_t word, bool hexadecimal) {
  char text[24];
  std::snprintf(text, sizeof text, hexadecimal ? "%016llx" : "%lld",
                static_cast<unsigned long long>(word));
  return text;
}

// Differing targets leave every rank with the same collectives: wait() tells of them. After the
// others the ranks' collectives do not match, so somebody would wait for good.
std::optional<Error> disagreement(Mailbox& mailbox) {
  const std::uint32_t field = read(mailbox.disagreement);
  if (field == 0 || field == differing_targets || field > agreed.size()) return std::nullopt;
  const std::string other = "rank " + std::to_string(read(mailbox.other_rank));
  if (field == differing_verdicts) {
    const std::uint64_t verdict = read(mailbox.other_value);
    const std::string rank = verdict != 0 ? other : "rank 0";
    if (std::max(read(mailbox.value), verdict) == given_up)
      return Error(ErrorCode::peer, rank + " gave the call up", true);
    return Error(ErrorCode::invalid_argument, rank + " refused the arguments of its call", true);
  }
  const std::uint64_t value = read(mailbox.value), other_value = read(mailbox.other_value);
  const bool hashes = field == differing_rows && ((value | other_value) & hashed_rows) != 0;
  const std::string label = hashes ? "rows_per_rank, as a hash" : agreed[field - 1];
  return Error(ErrorCode::mismatch,
               "in a call, " + label + ": " + other + " has " + print(other_value, hashes) +
                   ", rank 0 has " + print(value, hashes),
               true);
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
    if (auto error = disagreement(*box.mailbox)) return error;
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
