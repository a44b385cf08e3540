// From a problem to what one rank will do: shards, chunk rows, buffers, products, collectives.
#include "shardloss/plan.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "chunks.hpp"
#include "shardloss/error.hpp"
#include "validate.hpp"
#include "workspace.hpp"

namespace shardloss {
namespace {

using detail::ceil_div;
using detail::logits_ld;

constexpr int most_ranks = 1 << 20;
// Of ranks x max_rows: an exchange holds a record of every rank for every row of a chunk.
constexpr std::int64_t most_exchanged = std::int64_t{1} << 52;

DType logits_dtype(const Problem& problem) {
  if (problem.dtype == DType::float64) return DType::float64;
  return problem.accumulation == Accumulation::accurate ? DType::float32 : problem.dtype;
}

DType partial_dtype(const Problem& problem) {
  if (problem.dtype == DType::float64) return DType::float64;
  return problem.accumulation == Accumulation::compact ? problem.dtype : DType::float32;
}

// Measured: CPU products want a chunk that stays near the caches but is not thin; on an H200 the
// products of 2048 rows at a time take within 3 % of those of all rows at once, on two GPUs 6 %
// more; those of 1024 rows up to 9 % more, on two GPUs 18 %.
std::int64_t automatic_rows(const Plan& plan) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, logits_ld(plan.widest)) *
                                 static_cast<std::int64_t>(size_of(plan.logits_dtype));
  const bool cpu = plan.device == DeviceKind::cpu;
  const std::int64_t budget = cpu ? std::int64_t{128} << 20 : std::int64_t{2} << 30;
  const std::int64_t most = cpu ? 512 : 2048;
  const std::int64_t least = cpu ? 64 : 256;
  const auto fitting =
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, budget / row_bytes)));
  return std::clamp(static_cast<std::int64_t>(fitting), least, most);
}

// Everything that follows from a number of chunk rows.
void set_chunk_rows(const Problem& problem, Plan& plan, std::int64_t rows) {
  plan.chunk_rows = std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(1, problem.max_rows));
  plan.chunks = ceil_div(problem.max_rows, plan.chunk_rows);
  plan.slots = plan.ranks > 1 && plan.chunks > 1 ? 2 : 1;
  const std::int64_t kept = std::min(problem.keep_logits, problem.max_rows);
  plan.kept_rows = std::min(problem.max_rows, ceil_div(kept, plan.chunk_rows) * plan.chunk_rows);
}

// The workspace that a number of chunk rows takes on the rank with the largest shard.
std::size_t largest_workspace(const Problem& problem, const Plan& plan, std::int64_t rows) {
  Plan largest = plan;
  largest.shard.width = plan.widest;
  largest.shard.vocab = std::min(plan.widest, problem.vocab);
  set_chunk_rows(problem, largest, rows);
  return detail::map_workspace(problem, largest).total();
}

std::int64_t rows_within(const Problem& problem, const Plan& plan, std::int64_t limit) {
  const auto fits = [&](std::int64_t rows) {
    return largest_workspace(problem, plan, rows) <= static_cast<std::size_t>(limit);
  };
  if (fits(problem.max_rows)) return problem.max_rows;
  if (!fits(1)) {
    throw Error(ErrorCode::invalid_argument,
                "chunking workspace_limit: " + std::to_string(limit) +
                    " bytes do not hold one row; that takes " +
                    std::to_string(largest_workspace(problem, plan, 1)));
  }
  std::int64_t low = 1;
  std::int64_t high = problem.max_rows;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::int64_t find_chunk_rows(const Problem& problem, const Plan& plan) {
  switch (problem.chunking.rule) {
    case Chunking::Rule::automatic: return automatic_rows(plan);
    case Chunking::Rule::rows: return problem.chunking.value;
    case Chunking::Rule::workspace_limit: return rows_within(problem, plan, problem.chunking.value);
    case Chunking::Rule::aspect_ratio: {
      const std::int64_t ratio = std::max<std::int64_t>(1, ceil_div(plan.widest, problem.hidden));
      const std::int64_t rows = std::max<std::int64_t>(1, ceil_div(problem.max_rows, ratio));
      return std::max<std::int64_t>(
          1, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))) /
                 problem.chunking.value);
    }
  }
  throw Error(ErrorCode::internal, "unknown chunking rule");
}

// Largest buffers first in a reader's mind: names as people know them.
void list_buffers(const Problem& problem, Plan& plan) {
  using detail::Buffer;
  const detail::WorkspaceMap map = detail::map_workspace(problem, plan);
  const auto add = [&](Buffer buffer, const char* label) {
    for (int slot = 0; slot < 2; ++slot) {
      if (map.bytes(buffer, slot) == 0) continue;
      const std::string text = plan.slots == 2 && map.bytes(buffer, 1) != 0
                                   ? std::string(label) + " " + std::to_string(slot)
                                   : label;
      plan.buffers.push_back({text, map.offset(buffer, slot), map.bytes(buffer, slot)});
    }
  };
  add(Buffer::logits, "logits chunk");
  add(Buffer::grad_weight, "weight gradient accumulator");
  add(Buffer::grad_hidden, "hidden gradient partial sums");
  add(Buffer::hidden_rows, "hidden rows of a chunk");
  add(Buffer::hidden_tile, "hidden chunk in float32");
  add(Buffer::weight_tile, "weight tile in float32");
  add(Buffer::logits_tile, "logits tile in float32");
  add(Buffer::exchange, "statistics of all ranks");
  add(Buffer::row_inputs, "row inputs");
  add(Buffer::coefficients, "row coefficients");
  add(Buffer::grad_bias, "bias gradient");
  add(Buffer::row_scratch, "row scratch");
  add(Buffer::gemm, "matrix product workspace");
  add(Buffer::scalars, "scalars");
  plan.workspace_bytes = map.total();
  plan.saved_bytes = detail::saved_bytes(problem, plan);
}

void list_gemms(const Problem& problem, Plan& plan) {
  const std::int64_t rows = plan.chunk_rows;
  const std::string algorithm = plan.device == DeviceKind::cpu ? "cblas" : "chosen at construction";
  plan.gemms.push_back({"logits", rows, plan.shard.vocab, problem.hidden, algorithm});
  if (problem.grad_hidden != GradDType::none) {
    plan.gemms.push_back({"grad_hidden", rows, problem.hidden, plan.shard.vocab, algorithm});
  }
  if (problem.grad_weight != GradDType::none) {
    plan.gemms.push_back({"grad_weight", plan.shard.vocab, problem.hidden, rows, algorithm});
  }
}

void count_operations(const Problem& problem, Plan& plan) {
  const double product = 2.0 * static_cast<double>(problem.max_rows) *
                         static_cast<double>(plan.shard.vocab) *
                         static_cast<double>(problem.hidden);
  const int gradients =
      (problem.grad_hidden != GradDType::none) + (problem.grad_weight != GradDType::none);
  const double kept = problem.max_rows == 0 ? 0.0
                                            : static_cast<double>(plan.kept_rows) /
                                                  static_cast<double>(problem.max_rows);
  plan.forward_flops = product;
  plan.forward_backward_flops = product * (1 + gradients);
  plan.backward_flops = product * (1 - kept + gradients);
}

void list_collectives(const Problem& problem, Plan& plan) {
  if (plan.ranks == 1) return;
  const detail::WorkspaceMap map = detail::map_workspace(problem, plan);
  const bool sharded = problem.layout == Layout::row_sharded;
  const std::int64_t own_rows =
      sharded ? detail::even_rows(problem.max_rows, plan.ranks)[static_cast<std::size_t>(plan.rank)]
              : problem.max_rows;
  const auto hidden_bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  const auto input_bytes =
      static_cast<std::int64_t>(problem.dtype == DType::float64 ? sizeof(detail::RowInput<double>)
                                                                : sizeof(detail::RowInput<float>));
  const auto partial_bytes = static_cast<std::int64_t>(size_of(plan.grad_hidden_partial_dtype));
  const auto add = [&](const char* way, const char* what, const char* kind, const char* formula,
                       std::int64_t calls, std::int64_t bytes) {
    if (calls > 0) plan.collectives.push_back({way, what, kind, formula, calls, bytes});
  };
  for (const char* way : {"forward_backward", "forward", "backward"}) {
    const bool backward = std::string_view(way) == "backward";
    const bool gradients = std::string_view(way) != "forward";
    // An exchange of its own opens what has no statistics to carry the header, and what needs the
    // denominators of all ranks first.
    const std::int64_t exchanges =
        (backward || sharded || plan.chunks == 0 ? 1 : 0) + (backward ? 0 : plan.chunks);
    add(way, "statistics", "all_gather", "exchanges x (128 + rows of a chunk x record)", exchanges,
        exchanges * map.exchange_bytes);
    if (sharded) {
      add(way, "hidden", "all_gather", "N_r D x element", plan.chunks,
          own_rows * problem.hidden * hidden_bytes);
      add(way, "row inputs", "all_gather", "N_r x record", plan.chunks, own_rows * input_bytes);
    }
    if (gradients && problem.grad_hidden != GradDType::none) {
      add(way, "grad_hidden", sharded ? "reduce_scatter" : "all_reduce", "N D x element",
          plan.chunks, problem.max_rows * problem.hidden * partial_bytes);
    }
    if (detail::closes(plan) && plan.chunks > 0)
      add(way, "closing", "all_gather", "128", 1, sizeof(detail::CallHeader));
  }
}

}  // namespace

std::vector<Shard> make_shards(const Problem& problem, int ranks) {
  if (ranks > most_ranks) {
    throw Error(ErrorCode::invalid_argument, std::to_string(ranks) + " ranks, wanted at most 2^20");
  }
  const std::int64_t padded = problem.vocab_padded == 0 ? problem.vocab : problem.vocab_padded;
  std::vector<std::int64_t> widths = problem.shard_widths;
  if (widths.empty()) {
    for (int rank = 0; rank < ranks; ++rank)
      widths.push_back(padded / ranks + (rank < padded % ranks ? 1 : 0));
  }
  if (static_cast<int>(widths.size()) != ranks) {
    throw Error(ErrorCode::mismatch, "shard_widths lists " + std::to_string(widths.size()) +
                                         " shards for " + std::to_string(ranks) + " ranks");
  }
  // Each is looked at before they are added up: sums of any 64-bit numbers could come out right.
  const auto label = [&](std::size_t rank) {
    return "shard_widths[" + std::to_string(rank) + "] is " + std::to_string(widths[rank]);
  };
  for (std::size_t rank = 0; rank < widths.size(); ++rank)
    if (widths[rank] < 0) throw Error(ErrorCode::invalid_argument, label(rank));
  for (std::size_t rank = 0; rank < widths.size(); ++rank)
    if (widths[rank] > padded)
      throw Error(ErrorCode::mismatch, label(rank) + ", vocab_padded is " + std::to_string(padded));
  std::vector<Shard> shards;
  std::int64_t first = 0;
  for (const std::int64_t width : widths) {
    const std::int64_t end = first + width;
    shards.push_back({first, width, std::clamp(problem.vocab, first, end) - first});
    first = end;
  }
  if (first != padded) {
    throw Error(ErrorCode::mismatch, "shard_widths sum to " + std::to_string(first) +
                                         ", vocab_padded is " + std::to_string(padded));
  }
  return shards;
}

Plan make_plan(const Problem& problem, int ranks, int rank, DeviceKind device) {
  detail::validate_problem(problem, device);
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw Error(ErrorCode::invalid_argument,
                "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " ranks");
  }
  Plan plan;
  plan.device = device;
  plan.rank = rank;
  plan.ranks = ranks;
  const std::vector<Shard> shards = make_shards(problem, ranks);
  if (problem.max_rows > most_exchanged / ranks) {
    throw Error(ErrorCode::invalid_argument, "ranks x max_rows is " + std::to_string(ranks) +
                                                 " x " + std::to_string(problem.max_rows) +
                                                 ", wanted at most 2^52");
  }
  plan.shard = shards[static_cast<std::size_t>(rank)];
  for (const Shard& shard : shards) plan.widest = std::max(plan.widest, shard.width);
  plan.logits_dtype = logits_dtype(problem);
  plan.grad_hidden_partial_dtype = partial_dtype(problem);
  set_chunk_rows(problem, plan, find_chunk_rows(problem, plan));
  if (detail::gathers_rows(problem, plan)) {
    plan.chunks =
        detail::count_group_chunks(detail::even_rows(problem.max_rows, ranks), plan.chunk_rows);
  }
  list_buffers(problem, plan);
  list_gemms(problem, plan);
  count_operations(problem, plan);
  list_collectives(problem, plan);
  return plan;
}

}  // namespace shardloss
