/// \file
/// What a run tells at its beginning and at its end.
#pragma once

#include <string>

#include "options.hpp"
#include "text.hpp"
#include "trainer.hpp"

namespace language_model {

struct Report {
  double held_out = 0;  ///< nats per word
  double unigram = 0;
  std::int64_t steps = 0;
  std::int64_t words = 0;
  double seconds = 0;
  double margin = 0;  ///< wanted between the two

  bool passes() const { return margin <= 0 || held_out <= unigram - margin; }
};

void print_opening(const Options& options, const Text& text, Trainer& trainer, const World& world);

/// The closing table.
std::string to_string(const Report& report, const Options& options, const Trainer::Sizes& sizes,
                      const World& world);

/// Throws std::runtime_error where it cannot.
void write_text(const std::string& path, const std::string& text);

}  // namespace language_model
