#include "batches.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace language_model {

Share share(std::int64_t total, std::int64_t parts, std::int64_t index) {
  const std::int64_t each = total / parts;
  const std::int64_t more = total % parts;
  return {index * each + std::min(index, more), each + (index < more ? 1 : 0)};
}

std::uint64_t hash(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15ULL;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
  return key ^ (key >> 31);
}

Batches::Batches(std::span<const std::int32_t> words, std::int64_t length, std::int64_t context)
    : words_(words),
      length_(length),
      context_(context),
      sequences_((static_cast<std::int64_t>(words.size()) - context) / length) {
  if (sequences_ < 2) throw std::runtime_error("the text is shorter than two sequences");
}

void Batches::append(std::int64_t sequence, std::int64_t offset, Batch& batch) const {
  const auto at = words_.begin() + offset + sequence * length_;
  batch.ids.insert(batch.ids.end(), at, at + length_ + context_ - 1);
  batch.targets.insert(batch.targets.end(), at + context_, at + context_ + length_);
  ++batch.sequences;
}

Batch Batches::in_order(Share which) const {
  Batch batch;
  for (std::int64_t i = 0; i < which.count; ++i) append(which.first + i, 0, batch);
  return batch;
}

Batch Batches::shuffled(Share which, std::uint64_t seed) {
  // One sequence of the words is left out of each epoch, so that where the cuts lie can vary.
  const std::int64_t an_epoch = sequences_ - 1;
  Batch batch;
  for (std::int64_t i = which.first; i < which.first + which.count; ++i) {
    shuffle(i / an_epoch, seed);
    append(order_[static_cast<std::size_t>(i % an_epoch)], offset_, batch);
  }
  return batch;
}

void Batches::shuffle(std::int64_t epoch, std::uint64_t seed) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  std::uint64_t state = hash(seed ^ hash(static_cast<std::uint64_t>(epoch)));
  offset_ = static_cast<std::int64_t>(state % static_cast<std::uint64_t>(length_));
  order_.resize(static_cast<std::size_t>(sequences_ - 1));
  std::iota(order_.begin(), order_.end(), 0);
  for (std::size_t i = order_.size(); i > 1; --i) {  // std::shuffle differs between libraries
    state = hash(state);
    std::swap(order_[i - 1], order_[state % i]);
  }
}

}  // namespace language_model
