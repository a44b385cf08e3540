/// \file
/// The loss curve: written, drawn, compared.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace language_model {

/// A CSV file, one line a step, written as training goes on.
class Curve {
 public:
  /// Writes the heading. Throws std::runtime_error where it cannot.
  explicit Curve(const std::string& path);

  struct Line {
    std::int64_t step = 0;
    std::int64_t words = 0;
    double seconds = 0;
    double loss = 0;
    double held_out = 0;  ///< < 0: not known at that step
  };
  void add(const Line& line);
  /// Throws std::runtime_error unless all lines reached the file.
  void close();

 private:
  std::string path_;
  std::ofstream file_;
};

/// Has gnuplot draw the curve beside the unigram entropy; says so where gnuplot is missing.
void draw_curve(const std::string& csv, const std::string& svg, double unigram_entropy);

/// Prints the largest difference between two curves; true when both have the same steps and each
/// step's losses differ by no more than `tolerance` of the loss.
bool curves_agree(const std::string& one, const std::string& other, double tolerance);

}  // namespace language_model
