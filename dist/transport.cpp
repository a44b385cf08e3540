// What all transports share: the sticky failure, the record of steps, the traffic.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "shardloss/communicator.hpp"

namespace shardloss {
namespace {

using std::chrono::steady_clock;

double seconds_since(steady_clock::time_point then) {
  return std::chrono::duration<double>(steady_clock::now() - then).count();
}

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "(unknown host)";
  return name;
}

// What a rank brings to sum_over().
struct Values {
  std::int64_t count;
  std::int64_t dtype;

  bool operator==(const Values&) const = default;
  std::string text() const {
    return std::to_string(count) + " of " + std::string(name(static_cast<DType>(dtype)));
  }
};

// A sum of unlike values would be garbage on some rank, and no error on it. (A GPU's host is not to
// wait for others.)
void agree(Transport& transport, const Values& mine) {
  std::vector<Values> all(static_cast<std::size_t>(transport.size()));
  transport.exchange_host(&mine, all.data(), sizeof mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw Error(ErrorCode::mismatch, "sum_over: values are " + all[rank].text() + " on rank " +
                                         std::to_string(rank) + ", " + all[0].text() +
                                         " on rank 0");
  }
}

}  // namespace

Transport::Transport(int rank, int size, std::chrono::milliseconds deadline)
    : rank_(rank), size_(size), deadline_(deadline) {
  if (deadline <= std::chrono::milliseconds::zero() || deadline > longest_deadline) {
    throw Error(ErrorCode::invalid_argument, "deadline: " + std::to_string(deadline.count()) +
                                                 " ms, allowed are 1 ms to " +
                                                 std::to_string(longest_deadline.count()) + " ms");
  }
}

void Transport::abort() {
  fail(Error(ErrorCode::peer, "abort() was called on rank " + std::to_string(rank_), true));
}

void Transport::check() const {
  if (!failed()) return;
  const std::scoped_lock lock(mutex_);
  throw *first_error_;
}

Error Transport::fail(const Error& error) {
  const std::scoped_lock lock(mutex_);
  if (first_error_) return *first_error_;
  const std::string text = error.what();  // begins with the code's name, as the new one will
  first_error_.emplace(error.code(), text.substr(name(error.code()).size() + 2) + last_step(),
                       true);
  failed_.store(true, std::memory_order_release);
  report(*first_error_);
  return *first_error_;
}

// Called with mutex_ held.
std::string Transport::last_step() const {
  if (noted_ == 0) return "";
  const Step& last = steps_[(noted_ - 1) % kept_steps];
  char text[160];
  std::snprintf(text, sizeof text, " (call %llu, step %s, chunk %lld, %.2f s since it began)",
                static_cast<unsigned long long>(last.call), last.name,
                static_cast<long long>(last.chunk), seconds_since(last.when));
  return text;
}

// Called with mutex_ held.
void Transport::report(const Error& error) const {
  const std::string line =
      "shardloss: rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " on " +
      host_name() + " (" + std::string(kind()) + " on " +
      std::string(name(serves(DeviceKind::cpu) ? DeviceKind::cpu : DeviceKind::cuda)) +
      "): " + error.what() + "\n";
  std::fputs(line.c_str(), stderr);

  const char* path = std::getenv("SHARDLOSS_STEP_LOG");
  if (path == nullptr || *path == '\0') return;
  std::ofstream log(std::string(path) + ".rank" + std::to_string(rank_));
  log << line << "seconds_ago call chunk step\n";
  for (std::uint64_t i = noted_ - std::min<std::uint64_t>(noted_, kept_steps); i < noted_; ++i) {
    const Step& step = steps_[i % kept_steps];
    log << seconds_since(step.when) << ' ' << step.call << ' ' << step.chunk << ' ' << step.name
        << '\n';
  }
}

void Transport::note_step(const char* name, std::uint64_t call, std::int64_t chunk) noexcept {
  const std::scoped_lock lock(mutex_);
  steps_[noted_ % kept_steps] = {name, call, chunk, steady_clock::now()};
  ++noted_;
}

void sum_over(const Communicator& group, const Tensor& values, Stream stream) {
  Transport& transport = group.transport();
  transport.check();
  const bool contiguous = values.dims() == 0 || (values.dims() == 1 && values.stride(0) == 1);
  const std::int64_t count = values.size(0);
  const bool there = values.given() && count >= 0 && (values.data() != nullptr || count == 0);
  if (!there || !contiguous || !transport.serves(values.device().kind)) {
    throw Error(ErrorCode::invalid_argument, "sum_over: found " + to_string(values) +
                                                 ", wanted a contiguous vector "
                                                 "on a device that a communicator of kind " +
                                                 std::string(transport.kind()) + " serves");
  }
  transport.note_step("sum_over", 0, -1);
  if (values.device().kind == DeviceKind::cpu)
    agree(transport, {count, static_cast<std::int64_t>(values.dtype())});
  transport.wait(transport.all_reduce(values.data(), count, values.dtype(), stream), stream);
}

Traffic Transport::traffic() const noexcept {
  return {calls_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed)};
}

void Transport::count(std::int64_t bytes) noexcept {
  calls_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace shardloss
