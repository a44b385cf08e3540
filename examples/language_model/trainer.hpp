/// \file
/// The model and its training step on one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "batches.hpp"
#include "head.hpp"
#include "hidden_layers.hpp"
#include "options.hpp"
#include "text.hpp"
#include "world.hpp"

namespace language_model {

/// Every method is collective over the job, and returns the same on every rank.
class Trainer {
 public:
  Trainer(const Options& options, const Text& text, const World& world, int gpu);

  /// Steps taken, by an earlier run too.
  std::int64_t steps() const { return step_; }
  /// Words that a step learns from, on all ranks together.
  std::int64_t words_per_step() const { return batch_ * options_.length; }

  /// One step; returns the mean loss of its words, before it.
  double step(double learning_rate);

  /// Mean loss of the held-out words.
  double held_out_loss();
  /// Their mean loss under the unigram model of the training part.
  double held_out_unigram_entropy() const;

  void save(const std::string& path);
  void resume(const std::string& path);
  /// Hidden states and targets of the first held-out words, and the head.
  void save_states(const std::string& path);

  struct Sizes {
    std::int64_t vocab = 0;
    std::int64_t words_per_call = 0;  ///< whose logits would exist at once
    std::int64_t chunk_rows = 0;
    std::size_t workspace_bytes = 0;
    std::size_t shard_bytes = 0;      ///< this rank's part of the head's weight
    std::size_t parameter_bytes = 0;  ///< of everything trained, over all shards
  };
  Sizes sizes();

 private:
  GroupBatch group_batch(Batch batch, const World::Part& part) const;
  HeadSizes head_sizes() const;
  double accumulate(const GroupBatch& group);
  void sum_gradients();
  std::vector<Parameters*> parameters();

  Options options_;
  const Text& text_;
  const World& world_;
  std::int64_t batch_;  // sequences of a step, on all ranks together
  Batches train_;
  Batches held_out_;
  HiddenLayers layers_;
  std::unique_ptr<Head> head_;
  std::int64_t step_ = 0;
  std::vector<float> embedded_;
  std::vector<float> grad_hidden_;
};

}  // namespace language_model
