#include "text.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <unordered_map>

namespace language_model {
namespace {

constexpr const char* chapter_mark = "<chapter>";

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

void append_words(const std::string& line, std::size_t at, std::vector<std::string>& words) {
  while (at < line.size()) {
    if (std::isspace(static_cast<unsigned char>(line[at])) != 0) {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    if (is_letter(line[at])) {
      const auto joins = [&](std::size_t i) {
        return (line[i] == '\'' || line[i] == '-') && i + 1 < line.size() && is_letter(line[i + 1]);
      };
      while (end < line.size() && (is_letter(line[end]) || joins(end))) ++end;
    }
    words.push_back(line.substr(at, end - at));
    at = end;
  }
}

using Chapters = std::vector<std::vector<std::string>>;

Chapters read_chapters(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read the text " + path);
  Chapters chapters;
  std::string line;
  std::string current;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(':');
    const std::size_t space = line.find(' ');
    if (colon == std::string::npos || space == std::string::npos || colon > space) continue;
    const std::string chapter = line.substr(0, colon);
    if (chapter != current) {
      chapters.push_back({chapter_mark});
      current = chapter;
    }
    append_words(line, space + 1, chapters.back());
  }
  if (chapters.empty()) throw std::runtime_error(path + " has no line like \"Ge1:1 In the ...\"");
  return chapters;
}

std::vector<std::string> by_frequency(const Chapters& chapters) {
  std::unordered_map<std::string, std::int64_t> counts;
  for (const auto& chapter : chapters)
    for (const auto& word : chapter) ++counts[word];
  std::vector<std::string> words;
  for (const auto& entry : counts) words.push_back(entry.first);
  std::sort(words.begin(), words.end(), [&](const std::string& a, const std::string& b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  });
  return words;
}

}  // namespace

Text read_text(const std::string& path, int held_out_every) {
  const Chapters chapters = read_chapters(path);
  Text text;
  text.words = by_frequency(chapters);
  std::unordered_map<std::string, std::int32_t> ids;
  for (std::size_t i = 0; i < text.words.size(); ++i)
    ids[text.words[i]] = static_cast<std::int32_t>(i);
  for (std::size_t c = 0; c < chapters.size(); ++c) {
    const bool held_out = (c + 1) % static_cast<std::size_t>(held_out_every) == 0;
    auto& part = held_out ? text.held_out : text.train;
    for (const auto& word : chapters[c]) part.push_back(ids[word]);
  }
  return text;
}

std::uint64_t Text::fingerprint() const {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const auto& word : words)
    for (const char c : word + "\n")
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

std::vector<float> unigram_log_probabilities(const Text& text) {
  std::vector<std::int64_t> counts(text.words.size(), 1);
  for (const std::int32_t word : text.train) ++counts[static_cast<std::size_t>(word)];
  const double total = static_cast<double>(text.train.size() + text.words.size());
  std::vector<float> log_probabilities;
  log_probabilities.reserve(counts.size());
  for (const std::int64_t count : counts)
    log_probabilities.push_back(static_cast<float>(std::log(static_cast<double>(count) / total)));
  return log_probabilities;
}

}  // namespace language_model
