/// \file
/// The text as numbers: words, vocabulary, a training and a held-out part.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace language_model {

/// Words are runs of letters with their inner apostrophes and hyphens, and single punctuation
/// marks. A mark opens each chapter.
struct Text {
  std::vector<std::string> words;      ///< the vocabulary, most frequent first
  std::vector<std::int32_t> train;     ///< word ids, chapter after chapter
  std::vector<std::int32_t> held_out;  ///< the chapters that training never sees

  std::int64_t vocab() const { return static_cast<std::int64_t>(words.size()); }
  /// Stands in a checkpoint: a model fits only the vocabulary that it was trained on.
  std::uint64_t fingerprint() const;
};

/// Reads lines of the form "Ge1:1 In the beginning". Every `held_out_every`th chapter is held out.
/// Throws std::runtime_error for a file that has no such lines.
Text read_text(const std::string& path, int held_out_every);

/// log p(word), counted in `train`, one added to every count: the model that knows no context.
std::vector<float> unigram_log_probabilities(const Text& text);

}  // namespace language_model
