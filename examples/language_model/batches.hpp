/// \file
/// Which words a step learns from, and which part of them is this rank's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace language_model {

/// A run of things, [first, first + count).
struct Share {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Part `index` of `total` things in `parts`, as even as can be; the first parts get one more.
Share share(std::int64_t total, std::int64_t parts, std::int64_t index);

/// Sequences of `length` words with the `context` words before each of them.
struct Batch {
  std::int64_t sequences = 0;
  std::vector<std::int32_t> ids;      ///< [sequences, length + context - 1]: what is embedded
  std::vector<std::int32_t> targets;  ///< [sequences, length]: the word after each window
};

/// Cuts a run of words into sequences and deals them out, shuffled anew in every epoch. What a
/// sequence number holds depends on the seed alone: any number of ranks sees the same batches.
class Batches {
 public:
  Batches(std::span<const std::int32_t> words, std::int64_t length, std::int64_t context);

  /// Sequences in one pass over the words.
  std::int64_t sequences() const { return sequences_; }

  /// Sequences in the order of the words.
  Batch in_order(Share which) const;
  /// Sequences of an endless shuffled stream.
  Batch shuffled(Share which, std::uint64_t seed);

 private:
  void append(std::int64_t sequence, std::int64_t offset, Batch& batch) const;
  void shuffle(std::int64_t epoch, std::uint64_t seed);

  std::span<const std::int32_t> words_;
  std::int64_t length_;
  std::int64_t context_;
  std::int64_t sequences_;
  std::int64_t epoch_ = -1;          // of order_
  std::int64_t offset_ = 0;          // of that epoch's first sequence
  std::vector<std::int64_t> order_;  // of that epoch's sequences
};

/// A number in [0, 2^64) that depends on the key and nothing else (SplitMix64).
std::uint64_t hash(std::uint64_t key);

}  // namespace language_model
