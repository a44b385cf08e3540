/// \file
/// A progress bar for people: on rank 0, on stderr, and only where that is a terminal.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace shardloss::launch {

class Progress {
 public:
  Progress(std::string what, std::int64_t total, bool shown)
      : what_(std::move(what)), total_(total), shown_(shown && isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_ && drawn_) std::fprintf(stderr, "\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Redraws a few times a second at most.
  void at(std::int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || (drawn_ && now - last_ < std::chrono::milliseconds(200))) return;
    last_ = now;
    drawn_ = true;
    constexpr int width = 30;
    const int full = total_ == 0 ? width : static_cast<int>(width * done / total_);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::fprintf(stderr, "\r%s [%.*s%*s] %lld/%lld %.0f s\033[K", what_.c_str(), full,
                 "==============================", width - full, "", static_cast<long long>(done),
                 static_cast<long long>(total_), seconds);
    std::fflush(stderr);
  }

 private:
  std::string what_;
  std::int64_t total_;
  bool shown_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
};

}  // namespace shardloss::launch
