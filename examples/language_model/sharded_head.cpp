// The tied embedding and head through ShardLoss: one [V_r, D] shard of weight and gradient.
#include <shardloss/embedding.hpp>
#include <shardloss/loss.hpp>

#include "head.hpp"
#include "place.hpp"

namespace language_model {
namespace {

shardloss::Problem describe(const HeadSizes& sizes, const World& world) {
  shardloss::Problem problem;
  problem.max_rows = sizes.max_targets;
  problem.hidden = sizes.width;
  problem.vocab = sizes.vocab;
  problem.layout =
      world.row_sharded ? shardloss::Layout::row_sharded : shardloss::Layout::replicated;
  problem.bias = true;
  // Divided by the words of the whole step: of all micro-batches and data-parallel ranks.
  problem.reduction = shardloss::Reduction::sum;
  problem.normalizer = true;
  problem.grad_weight = shardloss::GradDType::float32;
  if (sizes.chunk_rows > 0) problem.chunking = {shardloss::Chunking::Rule::rows, sizes.chunk_rows};
  return problem;
}

shardloss::Problem with_rows(shardloss::Problem problem, std::int64_t max_rows) {
  problem.max_rows = max_rows;
  return problem;
}

class ShardedHead : public Head {
 public:
  ShardedHead(const HeadSizes& sizes, const shardloss::Problem& problem,
              std::unique_ptr<Place> place)
      : Head(sizes, own_rows(problem, place->communicator())),
        width_(sizes.width),
        place_(std::move(place)),
        loss_(problem, place_->communicator(), place_->device()),
        embedding_(with_rows(problem, sizes.max_ids), place_->communicator(), place_->device()) {}

  void embed(const GroupBatch& group, std::vector<float>& embedded) override {
    const auto ids = put_words(Slot::ids, group.batch.ids);
    embedded.resize(group.batch.ids.size() * static_cast<std::size_t>(width_));
    embedding_.forward(ids, weight_view(), rows_view(Slot::embedded, embedded), group.ids_of_rank,
                       place_->stream());
    place_->get(Slot::embedded, embedded);
  }

  void embed_backward(const GroupBatch& group, const std::vector<float>& grad) override {
    const auto ids = put_words(Slot::ids, group.batch.ids);
    embedding_.backward(ids, put_rows(Slot::embedded, grad), grad_weight_view(), true,
                        group.ids_of_rank, place_->stream());
    embedding_.wait(place_->stream());
  }

  double train(const GroupBatch& group, const std::vector<float>& hidden, double words,
               std::vector<float>& grad_hidden) override {
    const auto inputs = put_inputs(group, hidden, words);
    grad_hidden.resize(hidden.size());
    shardloss::Gradients gradients;
    gradients.hidden = rows_view(Slot::embedded, grad_hidden);
    gradients.weight = grad_weight_view();
    gradients.bias = vector_view(Slot::grad_bias, bias_.gradient);
    gradients.accumulate_weight = true;
    gradients.accumulate_bias = true;
    loss_.forward_backward(inputs, outputs(), {}, gradients, {place_->stream()});
    loss_.wait(place_->stream());
    place_->get(Slot::embedded, grad_hidden);
    place_->get(Slot::loss, loss_value_);
    return loss_value_[0];
  }

  double evaluate(const GroupBatch& group, const std::vector<float>& hidden) override {
    loss_.forward(put_inputs(group, hidden, 1), outputs(), nullptr, {place_->stream()});
    loss_.wait(place_->stream());
    place_->get(Slot::loss, loss_value_);
    return loss_value_[0];
  }

  void fetch_gradients() override {
    place_->get(Slot::grad_weight, weight_.gradient);
    place_->get(Slot::grad_bias, bias_.gradient);
  }

  void send_parameters() override {
    place_->put(Slot::weight, weight_.value);
    place_->put(Slot::bias, bias_.value);
    place_->put(Slot::grad_weight, weight_.gradient);
    place_->put(Slot::grad_bias, bias_.gradient);
  }

  Footprint footprint() const override {
    return {loss_.plan().workspace_bytes + embedding_.workspace_bytes(), loss_.plan().chunk_rows};
  }

 private:
  static Share own_rows(const shardloss::Problem& problem, const shardloss::Communicator& group) {
    const auto shards = shardloss::make_shards(problem, group.size());
    const auto& own = shards[static_cast<std::size_t>(group.rank())];
    return {own.first, own.width};
  }

  shardloss::Tensor rows_view(Slot slot, std::vector<float>& host) {
    const auto rows = static_cast<std::int64_t>(host.size()) / width_;
    return shardloss::matrix(place_->at(slot, host), rows, width_, place_->device());
  }
  shardloss::Tensor vector_view(Slot slot, std::vector<float>& host) {
    const auto size = static_cast<std::int64_t>(host.size());
    return shardloss::vector(place_->at(slot, host), size, place_->device());
  }
  shardloss::Tensor weight_view() { return rows_view(Slot::weight, weight_.value); }
  shardloss::Tensor grad_weight_view() { return rows_view(Slot::grad_weight, weight_.gradient); }

  shardloss::ConstTensor put_rows(Slot slot, const std::vector<float>& host) {
    const auto rows = static_cast<std::int64_t>(host.size()) / width_;
    return shardloss::matrix(place_->put(slot, host), rows, width_, place_->device());
  }
  shardloss::ConstTensor put_words(Slot slot, const std::vector<std::int32_t>& words) {
    const auto size = static_cast<std::int64_t>(words.size());
    return shardloss::vector(place_->put(slot, words), size, place_->device());
  }

  shardloss::Inputs put_inputs(const GroupBatch& group, const std::vector<float>& hidden,
                               double words) {
    normalizer_[0] = static_cast<float>(words);
    shardloss::Inputs inputs;
    inputs.hidden = put_rows(Slot::hidden, hidden);
    inputs.weight = weight_view();
    inputs.bias = vector_view(Slot::bias, bias_.value);
    inputs.targets = put_words(Slot::targets, group.batch.targets);
    inputs.normalizer =
        shardloss::scalar(place_->put(Slot::normalizer, normalizer_), place_->device());
    inputs.rows_per_rank = group.targets_of_rank;
    return inputs;
  }

  shardloss::Outputs outputs() {
    shardloss::Outputs outputs;
    outputs.loss = shardloss::scalar(place_->at(Slot::loss, loss_value_), place_->device());
    return outputs;
  }

  std::int64_t width_;
  std::unique_ptr<Place> place_;
  shardloss::Loss loss_;
  shardloss::VocabParallelEmbedding embedding_;
  std::vector<float> loss_value_{0.0F};
  std::vector<float> normalizer_{1.0F};
};

}  // namespace

std::unique_ptr<Head> make_sharded_head(const HeadSizes& sizes, const World& world, int gpu) {
  return std::make_unique<ShardedHead>(sizes, describe(sizes, world), make_place(world, gpu));
}

}  // namespace language_model
