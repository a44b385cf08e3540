// What the trainer writes and reads: whole tensors, each rank its own rows, so that a file fits any
// number of ranks.
#include <array>
#include <stdexcept>
#include <utility>

#include "safetensors.hpp"
#include "trainer.hpp"

namespace language_model {
namespace {

using Part = std::pair<const char*, std::vector<float> Parameters::*>;
constexpr std::array<Part, 3> saved_parts = {
    Part{"", &Parameters::value},
    Part{".first_moment", &Parameters::first_moment},
    Part{".second_moment", &Parameters::second_moment},
};

FileTensor floats(std::int64_t rows, std::int64_t columns) {
  if (columns == 1) return {"F32", {rows}, 0, 0};
  return {"F32", {rows, columns}, 0, 0};
}

/// The rows that this rank writes: one rank of those that hold the same.
Share to_write(const Parameters& matrix, const World& world) {
  const bool writes = matrix.sharded ? world.data.rank() == 0 : world.first();
  return writes ? matrix.own : Share{};
}

}  // namespace

void Trainer::save(const std::string& path) {
  std::map<std::string, FileTensor> tensors;
  for (const Parameters* matrix : parameters())
    for (const auto& [suffix, values] : saved_parts)
      tensors[matrix->name + suffix] = floats(matrix->rows, matrix->columns);
  SafetensorsWriter file(
      world_, path, tensors,
      {{"step", std::to_string(step_)}, {"vocabulary", std::to_string(text_.fingerprint())}});
  for (const Parameters* matrix : parameters())
    for (const auto& [suffix, values] : saved_parts)
      file.write(matrix->name + suffix, to_write(*matrix, world_), (matrix->*values).data());
  file.finish();
}

void Trainer::resume(const std::string& path) {
  const SafetensorsReader file(path);
  if (file.metadata("vocabulary") != std::to_string(text_.fingerprint()))
    throw std::runtime_error(path + " was trained on another vocabulary");
  for (Parameters* matrix : parameters())
    for (const auto& [suffix, values] : saved_parts)
      file.read(matrix->name + suffix, matrix->rows, matrix->columns, matrix->own, matrix->*values);
  step_ = std::stoll(file.metadata("step"));
  head_->send_parameters();
}

void Trainer::save_states(const std::string& path) {
  // What one tensor group computes at a time; the other groups compute the same and stay silent.
  World alone = world_;
  alone.data = shardloss::self();
  const std::int64_t sequences =
      std::min(head_sizes().max_targets / options_.length, held_out_.sequences());
  const std::int64_t rows = sequences * options_.length;
  const World::Part part = alone.part_of({0, sequences});
  const GroupBatch group = group_batch(held_out_.in_order(part.mine), part);
  head_->embed(group, embedded_);
  const auto& hidden = layers_.forward(embedded_, group.batch.sequences);
  const std::vector<std::int64_t> targets(group.batch.targets.begin(), group.batch.targets.end());

  const Parameters& weight = head_->weight();
  const Parameters& bias = head_->bias();
  SafetensorsWriter file(world_, path,
                         {{"hidden", floats(rows, weight.columns)},
                          {"targets", {"I64", {rows}, 0, 0}},
                          {"weight", floats(weight.rows, weight.columns)},
                          {"bias", floats(bias.rows, bias.columns)}},
                         {});
  Share own_rows{part.mine.first * options_.length, part.mine.count * options_.length};
  const bool writes = world_.data.rank() == 0 && (world_.row_sharded || world_.tensor.rank() == 0);
  if (!writes) own_rows = {};
  file.write("hidden", own_rows, hidden.data());
  file.write("targets", own_rows, targets.data());
  file.write("weight", to_write(weight, world_), weight.value.data());
  file.write("bias", to_write(bias, world_), bias.value.data());
  file.finish();
}

}  // namespace language_model
