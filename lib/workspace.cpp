// Which buffers a problem needs, how large, and where.
#include "workspace.hpp"

#include <algorithm>

namespace shardloss::detail {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t scalars_bytes = 4096;
constexpr std::size_t cublas_bytes = std::size_t{32} << 20;
constexpr std::int64_t cpu_tile = 1024;

std::size_t bytes_of(std::int64_t elements, std::size_t each) {
  return static_cast<std::size_t>(elements) * each;
}

std::size_t real_bytes(const Problem& problem) {
  return problem.dtype == DType::float64 ? sizeof(double) : sizeof(float);
}

template <template <class> class Record>
std::size_t record_bytes(const Problem& problem) {
  return problem.dtype == DType::float64 ? sizeof(Record<double>) : sizeof(Record<float>);
}

void place_slot(WorkspaceMap& map, int slot, const Problem& problem, const Plan& plan) {
  const std::int64_t rows = plan.chunk_rows;
  const bool cpu = plan.device == DeviceKind::cpu;
  const bool short_floats = size_of(problem.dtype) == 2;
  map.place(Buffer::logits, slot,
            bytes_of(rows * logits_ld(plan.shard.vocab), size_of(plan.logits_dtype)));
  map.place(Buffer::exchange, slot,
            bytes_of(map.exchange_bytes, static_cast<std::size_t>(plan.ranks)));
  map.place(Buffer::row_inputs, slot, bytes_of(rows, record_bytes<RowInput>(problem)));
  map.place(Buffer::coefficients, slot, bytes_of(rows, record_bytes<RowCoefficients>(problem)));
  if (gathers_rows(problem, plan) || problem.row_index) {
    map.place(Buffer::hidden_rows, slot, bytes_of(rows * problem.hidden, size_of(problem.dtype)));
  }
  const bool indirect = plan.ranks > 1 || problem.row_index || (cpu && short_floats);
  if (indirect && problem.grad_hidden != GradDType::none) {
    map.place(Buffer::grad_hidden, slot,
              bytes_of(rows * problem.hidden, size_of(plan.grad_hidden_partial_dtype)));
  }
}

void place_weight_gradients(WorkspaceMap& map, const Problem& problem, const Plan& plan) {
  if (problem.grad_weight == GradDType::none) return;
  const bool short_result = size_of(grad_dtype(problem.grad_weight, problem.dtype)) == 2;
  if (short_result && plan.chunks > 1 && problem.accumulation != Accumulation::compact) {
    map.place(Buffer::grad_weight, 0, bytes_of(plan.shard.vocab * problem.hidden, sizeof(float)));
  }
  if (problem.bias)
    map.place(Buffer::grad_bias, 0, bytes_of(plan.shard.vocab, real_bytes(problem)));
}

void place_cpu_tiles(WorkspaceMap& map, const Problem& problem, const Plan& plan) {
  const std::int64_t rows = plan.chunk_rows;
  if (size_of(problem.dtype) == 2) {
    map.place(Buffer::hidden_tile, 0, bytes_of(rows * problem.hidden, sizeof(float)));
    map.place(Buffer::weight_tile, 0, bytes_of(map.tile * problem.hidden, sizeof(float)));
    map.place(Buffer::logits_tile, 0, bytes_of(rows * map.tile, sizeof(float)));
  }
  map.place(Buffer::row_scratch, 0, bytes_of(rows * 2, sizeof(double)));  // of losses
}

}  // namespace

void WorkspaceMap::place(Buffer buffer, int slot, std::size_t bytes) {
  Place& place = places_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(slot)];
  place.offset = total_;
  place.bytes = bytes;
  total_ += (bytes + alignment - 1) / alignment * alignment;
}

WorkspaceMap map_workspace(const Problem& problem, const Plan& plan) {
  WorkspaceMap map;
  map.exchange_bytes = static_cast<std::int64_t>(
      sizeof(CallHeader) + bytes_of(plan.chunk_rows, record_bytes<RowStatistics>(problem)));
  map.tile = std::min(cpu_tile, std::max<std::int64_t>(plan.shard.vocab, 1));
  for (int slot = 0; slot < plan.slots; ++slot) place_slot(map, slot, problem, plan);
  place_weight_gradients(map, problem, plan);
  map.place(Buffer::scalars, 0, scalars_bytes);
  if (plan.device == DeviceKind::cpu) {
    place_cpu_tiles(map, problem, plan);
  } else {
    // Scans and combinations leave a share a block; behind them the bias, as the products take it.
    const std::int64_t bias = problem.bias ? logits_ld(plan.shard.vocab) : 0;
    map.place(Buffer::row_scratch, 0, shares_bytes + bytes_of(bias, size_of(plan.logits_dtype)));
    map.place(Buffer::gemm, 0, cublas_bytes);
  }
  return map;
}

WorkspaceMap map_embedding(const Problem& problem, const Plan& plan) {
  WorkspaceMap map;
  map.exchange_bytes = sizeof(CallHeader);
  for (int slot = 0; slot < plan.slots; ++slot) {
    map.place(Buffer::exchange, slot,
              bytes_of(map.exchange_bytes, static_cast<std::size_t>(plan.ranks)));
    map.place(Buffer::row_inputs, slot, bytes_of(plan.chunk_rows, sizeof(std::int64_t)));
    map.place(Buffer::hidden_rows, slot,
              bytes_of(plan.chunk_rows * problem.hidden, size_of(problem.dtype)));
  }
  map.place(Buffer::scalars, 0, scalars_bytes);
  // CUDA sorts (id, row) pairs, in and out, and keeps the sort's own scratch behind them.
  if (plan.device == DeviceKind::cuda) {
    map.place(Buffer::row_scratch, 0, (std::size_t{1} << 20) + bytes_of(plan.chunk_rows, 64));
  }
  return map;
}

std::size_t saved_rows_bytes(const Problem& problem) {
  const std::size_t bytes = bytes_of(problem.max_rows, record_bytes<SavedRow>(problem));
  return (bytes + alignment - 1) / alignment * alignment;
}

std::size_t saved_bytes(const Problem& problem, const Plan& plan) {
  return saved_rows_bytes(problem) +
         bytes_of(plan.kept_rows * logits_ld(plan.shard.vocab), size_of(plan.logits_dtype));
}

}  // namespace shardloss::detail
