#include "curve.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace language_model {

Curve::Curve(const std::string& path) : path_(path), file_(path) {
  file_ << "step,words,seconds,loss,perplexity,held_out\n";
  if (!file_) throw std::runtime_error("cannot write " + path);
}

void Curve::add(const Line& line) {
  char text[160];
  std::snprintf(text, sizeof text, "%lld,%lld,%.3f,%.9g,%.6g,", static_cast<long long>(line.step),
                static_cast<long long>(line.words), line.seconds, line.loss, std::exp(line.loss));
  file_ << text;
  if (line.held_out >= 0) file_ << line.held_out;
  file_ << std::endl;
}

void Curve::close() {
  file_.close();
  if (!file_) throw std::runtime_error("cannot write " + path_);
}

void draw_curve(const std::string& csv, const std::string& svg, double unigram_entropy) {
  const std::string entropy = std::to_string(unigram_entropy);
  const char* const arguments[] = {
      "gnuplot", "-c", LANGUAGE_MODEL_PLOT, csv.c_str(), svg.c_str(), entropy.c_str(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, "gnuplot", nullptr, nullptr,
                                   const_cast<char* const*>(arguments), environ);
  if (error == ENOENT) {
    std::printf("no picture: gnuplot is not installed (Debian: gnuplot-nox)\n");
    return;
  }
  int status = 0;
  if (error == 0) ::waitpid(child, &status, 0);
  if (error != 0 || status != 0) throw std::runtime_error("gnuplot could not draw " + svg);
}

namespace {

struct Point {
  long long step = 0;
  double loss = 0;
};

std::vector<Point> read_curve(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line.rfind("step,words,seconds,loss,", 0) != 0)
    throw std::runtime_error(path + " is no loss curve");
  std::vector<Point> points;
  while (std::getline(file, line)) {
    Point point;
    if (std::sscanf(line.c_str(), "%lld,%*d,%*f,%lf", &point.step, &point.loss) != 2)
      throw std::runtime_error(path + ": cannot read \"" + line + "\"");
    points.push_back(point);
  }
  return points;
}

}  // namespace

bool curves_agree(const std::string& one, const std::string& other, double tolerance) {
  const auto a = read_curve(one);
  const auto b = read_curve(other);
  if (a.empty() || a.size() != b.size()) {
    std::printf("%s has %zu steps, %s has %zu\n", one.c_str(), a.size(), other.c_str(), b.size());
    return false;
  }
  double worst = 0;
  Point at;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i].loss - b[i].loss) / std::abs(a[i].loss);
    if (a[i].step != b[i].step || !std::isfinite(difference)) {
      std::printf("step %lld loss %.7g against step %lld loss %.7g\n", a[i].step, a[i].loss,
                  b[i].step, b[i].loss);
      return false;
    }
    if (difference >= worst) {
      worst = difference;
      at = a[i];
    }
  }
  std::printf(
      "%zu steps, largest relative difference %.2e at step %lld (loss %.6f), allowed %.0e\n",
      a.size(), worst, at.step, at.loss, tolerance);
  return worst <= tolerance;
}

}  // namespace language_model
