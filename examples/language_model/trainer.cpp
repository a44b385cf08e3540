#include "trainer.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace language_model {
namespace {

LayerSizes layer_sizes(const Options& options) {
  return {options.context, options.width, options.hidden, options.layers, options.length};
}

std::int64_t at_most(std::int64_t total, std::int64_t parts) {
  return share(total, parts, 0).count;
}

}  // namespace

Trainer::Trainer(const Options& options, const Text& text, const World& world, int gpu)
    : options_(options),
      text_(text),
      world_(world),
      batch_(options.fsdp ? options.batch * world.all.size() : options.batch),
      train_(text.train, options.length, options.context),
      held_out_(text.held_out, options.length, options.context),
      layers_(layer_sizes(options), options.seed) {
  head_ =
      options.dense ? make_dense_head(head_sizes()) : make_sharded_head(head_sizes(), world, gpu);
  head_->weight().randomize(options.seed, 0.1);
  const auto unigram = unigram_log_probabilities(text);
  const Share own = head_->bias().own;
  std::copy_n(unigram.begin() + own.first, own.count, head_->bias().value.begin());
  head_->send_parameters();
}

HeadSizes Trainer::head_sizes() const {
  // Of the largest micro-batch of a tensor group. Held-out words come in batches of that size.
  const std::int64_t sequences =
      at_most(at_most(batch_, options_.micro_batches), world_.data.size());
  HeadSizes sizes;
  sizes.vocab = text_.vocab();
  sizes.width = options_.width;
  sizes.max_ids = sequences * (options_.length + options_.context - 1);
  sizes.max_targets = sequences * options_.length;
  sizes.chunk_rows = options_.chunk_rows;
  return sizes;
}

GroupBatch Trainer::group_batch(Batch batch, const World::Part& part) const {
  GroupBatch group{std::move(batch), {}, {}};
  for (const std::int64_t sequences : part.of_rank) {
    group.ids_of_rank.push_back(sequences * (options_.length + options_.context - 1));
    group.targets_of_rank.push_back(sequences * options_.length);
  }
  return group;
}

double Trainer::step(double learning_rate) {
  double loss = 0;
  for (std::int64_t m = 0; m < options_.micro_batches; ++m) {
    Share sequences = share(batch_, options_.micro_batches, m);
    sequences.first += step_ * batch_;
    const World::Part part = world_.part_of(sequences);
    loss += accumulate(group_batch(train_.shuffled(part.mine, options_.seed), part));
  }
  ++step_;
  sum_gradients();
  AdamW adamw;
  adamw.weight_decay = options_.weight_decay;
  for (Parameters* matrix : parameters()) update(*matrix, adamw, step_, learning_rate);
  head_->send_parameters();
  sum_over(world_.data, std::span(&loss, 1));
  return loss;
}

/// Forward and backward of one micro-batch. Gradients add up over micro-batches in the float32
/// buffers that AdamW reads; the head's and the embedding's in the same one.
double Trainer::accumulate(const GroupBatch& group) {
  head_->embed(group, embedded_);
  const auto& hidden = layers_.forward(embedded_, group.batch.sequences);
  const auto words = static_cast<double>(words_per_step());
  const double loss = head_->train(group, hidden, words, grad_hidden_);
  head_->embed_backward(group, layers_.backward(grad_hidden_));
  return loss;
}

/// A shard's gradient is complete within its tensor group. The hidden layers' is, where all of the
/// group saw the same rows; where each had its own, it is the sum over them too.
void Trainer::sum_gradients() {
  head_->fetch_gradients();
  sum_over(world_.data, std::span<float>(head_->weight().gradient));
  sum_over(world_.data, std::span<float>(head_->bias().gradient));
  const auto& group = world_.row_sharded ? world_.all : world_.data;
  for (Parameters& matrix : layers_.parameters())
    sum_over(group, std::span<float>(matrix.gradient));
}

double Trainer::held_out_loss() {
  const std::int64_t at_once = at_most(batch_, options_.micro_batches);
  double sum = 0;
  for (std::int64_t first = 0; first < held_out_.sequences(); first += at_once) {
    const Share sequences{first, std::min(at_once, held_out_.sequences() - first)};
    const World::Part part = world_.part_of(sequences);
    const GroupBatch group = group_batch(held_out_.in_order(part.mine), part);
    head_->embed(group, embedded_);
    sum += head_->evaluate(group, layers_.forward(embedded_, group.batch.sequences));
  }
  sum_over(world_.data, std::span(&sum, 1));
  return sum / static_cast<double>(held_out_.sequences() * options_.length);
}

double Trainer::held_out_unigram_entropy() const {
  const auto unigram = unigram_log_probabilities(text_);
  const Batch all = held_out_.in_order({0, held_out_.sequences()});
  double sum = 0;
  for (const std::int32_t word : all.targets) sum -= unigram[static_cast<std::size_t>(word)];
  return sum / static_cast<double>(all.targets.size());
}

std::vector<Parameters*> Trainer::parameters() {
  std::vector<Parameters*> all{&head_->weight(), &head_->bias()};
  for (Parameters& matrix : layers_.parameters()) all.push_back(&matrix);
  return all;
}

Trainer::Sizes Trainer::sizes() {
  const HeadSizes head = head_sizes();
  const Footprint footprint = head_->footprint();
  Sizes sizes;
  sizes.vocab = head.vocab;
  sizes.words_per_call = head.max_targets;
  sizes.chunk_rows = footprint.chunk_rows;
  sizes.workspace_bytes = footprint.workspace_bytes;
  sizes.shard_bytes = head_->weight().value.size() * sizeof(float);
  for (const Parameters* matrix : parameters())
    sizes.parameter_bytes +=
        static_cast<std::size_t>(matrix->rows * matrix->columns) * sizeof(float);
  return sizes;
}

}  // namespace language_model
