#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace language_model {
namespace {

constexpr int bar_columns = 24;
constexpr double seconds_between_frames = 0.2;
constexpr double seconds_between_lines = 5;

}  // namespace

Progress::Progress(const std::string& style)
    : speaks_(style != "none"),
      bar_(style == "bar" || (style == "auto" && ::isatty(STDOUT_FILENO) == 1)),
      begin_(std::chrono::steady_clock::now()) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void Progress::show(const State& state) {
  const double now = seconds();
  if (!speaks_ || (now < next_ && state.share < 1)) return;
  next_ = now + (bar_ ? seconds_between_frames : seconds_between_lines);
  const double left = state.share > 0 ? std::max(now / state.share - now, 0.0) : 0;
  std::string bar;
  if (bar_) {
    const int full = static_cast<int>(state.share * bar_columns);
    bar = "\r[" + std::string(static_cast<std::size_t>(full), '#') +
          std::string(static_cast<std::size_t>(bar_columns - full), '.') + "] ";
  }
  std::printf("%s%3.0f %%  step %lld  loss %.4f  perplexity %.1f  %.0f words/s  %.0f s left%s",
              bar.c_str(), 100 * state.share, static_cast<long long>(state.step), state.loss,
              std::exp(state.loss), state.words_per_second, left, bar_ ? "   " : "\n");
  std::fflush(stdout);
  open_ = bar_;
}

void Progress::finish() {
  if (open_) std::printf("\n");
  open_ = false;
}

}  // namespace language_model
