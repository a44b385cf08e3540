/// \file
/// What the person who waits sees.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace language_model {

/// A bar that is drawn again and again, or a line now and then.
class Progress {
 public:
  /// `style`: bar, lines, none, or auto: a bar on a terminal.
  explicit Progress(const std::string& style);

  struct State {
    double share = 0;  ///< of the work that is done, [0, 1]
    std::int64_t step = 0;
    double loss = 0;  ///< smoothed
    double words_per_second = 0;
  };
  void show(const State& state);
  /// Ends the bar's line.
  void finish();

  /// Since construction.
  double seconds() const;

 private:
  bool speaks_;
  bool bar_;
  std::chrono::steady_clock::time_point begin_;
  double next_ = 0;  // seconds at which to show again
  bool open_ = false;
};

}  // namespace language_model
