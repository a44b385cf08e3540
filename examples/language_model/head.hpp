/// \file
/// The tied embedding and head: one matrix [V, D] and a bias [V], sharded or whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "parameters.hpp"
#include "world.hpp"

namespace language_model {

/// A batch as its tensor group sees it.
struct GroupBatch {
  Batch batch;                                ///< this rank's sequences
  std::vector<std::int64_t> ids_of_rank;      ///< row_sharded: of every rank, else empty
  std::vector<std::int64_t> targets_of_rank;  ///< likewise
};

struct HeadSizes {
  std::int64_t vocab = 0;
  std::int64_t width = 0;        ///< D
  std::int64_t max_ids = 0;      ///< of a call; row_sharded: of all ranks together
  std::int64_t max_targets = 0;  ///< likewise
  std::int64_t chunk_rows = 0;   ///< 0: the library's choice
};

/// What the head needs beside its parameters on this rank.
struct Footprint {
  std::size_t workspace_bytes = 0;
  std::int64_t chunk_rows = 0;
};

class Head {
 public:
  virtual ~Head() = default;

  /// embedded [ids, D] = rows of the weight.
  virtual void embed(const GroupBatch& batch, std::vector<float>& embedded) = 0;
  /// Adds to the weight's gradient.
  virtual void embed_backward(const GroupBatch& batch, const std::vector<float>& grad) = 0;

  /// Returns the sum of the losses / words, over the rows of the group; writes the gradient of
  /// `hidden` [targets, D], adds to those of weight and bias.
  virtual double train(const GroupBatch& batch, const std::vector<float>& hidden, double words,
                       std::vector<float>& grad_hidden) = 0;
  /// The sum of the losses over the rows of the group.
  virtual double evaluate(const GroupBatch& batch, const std::vector<float>& hidden) = 0;

  /// Parameters are updated on the host: before an update their gradients go there, and after it
  /// the parameters come back.
  virtual void fetch_gradients() {}
  virtual void send_parameters() {}

  virtual Footprint footprint() const = 0;

  Parameters& weight() { return weight_; }
  Parameters& bias() { return bias_; }

 protected:
  Head(const HeadSizes& sizes, Share own)
      : weight_(Parameters::shard("weight", sizes.vocab, sizes.width, own)),
        bias_(Parameters::shard("bias", sizes.vocab, 1, own)) {}

  Parameters weight_;
  Parameters bias_;
};

/// The head through ShardLoss, on the ranks of world.tensor; `gpu` < 0: on the CPU.
std::unique_ptr<Head> make_sharded_head(const HeadSizes& sizes, const World& world, int gpu);

/// The head with whole logits [targets, V], in one process: what the library does without. Here to
/// compare.
std::unique_ptr<Head> make_dense_head(const HeadSizes& sizes);

}  // namespace language_model
