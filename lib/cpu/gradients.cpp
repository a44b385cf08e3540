// Steps 6 to 8: logits become their gradient tile by tile, and each tile enters a product while it
// is in the cache.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "logits.hpp"
#include "row_steps.hpp"
#include "steps.hpp"
#include "vector_math.hpp"

namespace shardloss::detail::cpu {
namespace {

// Columns of a tile whose sums over the rows one thread makes.
constexpr std::int64_t bias_columns = 64;

// db += column sums of a tile, each in the order of the rows.
template <class Real>
void add_bias_gradient(const Context<Real>& context, const Call& call, const Chunk& chunk,
                       Tile tile, Matrix<const Real> dlogits) {
  Real* bias = context.template buffer<Real>(call.workspace, Buffer::grad_bias) + tile.begin;
  const auto alpha = static_cast<Real>(context.chunk_scale(call, chunk));
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < tile.size; begin += bias_columns) {
    const std::int64_t count = std::min(bias_columns, tile.size - begin);
    std::array<Real, bias_columns> sums{};
    for (std::int64_t row = 0; row < chunk.rows; ++row) {
      add(dlogits.row(row) + begin, count, sums.data());
    }
    scale(sums.data(), count, alpha, sums.data());
    add(sums.data(), count, bias + begin);
  }
}

// Step 6 of a tile: dU into the slot. Returned as Real: before it is rounded, where it is.
template <class Real>
Matrix<const Real> make_dlogits(const Context<Real>& context, const Call& call, const Chunk& chunk,
                                Tile tile, const RowSteps<Real>& steps) {
  const StoredMatrix<void> from = made_logits(context, call, chunk).from(0, tile.begin);
  const StoredMatrix<void> to = slot_logits(context, call, chunk).from(0, tile.begin);
  const RowCoefficients<Real>* coefficients = context.coefficients(call, chunk);
  const bool direct = is_real<Real>(to.dtype);
  const Matrix<Real> du =
      direct ? Matrix<Real>{static_cast<Real*>(to.data), to.ld} : tile_buffer(context, call);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    if (direct) {
      steps.gradient(static_cast<const Real*>(from.at(row, 0)), tile.begin, tile.size,
                     coefficients[row], du.row(row));
    } else {
      to_real(from.dtype, from.at(row, 0), tile.size, du.row(row));
      steps.gradient(du.row(row), tile.begin, tile.size, coefficients[row], du.row(row));
      from_real(du.row(row), tile.size, to.dtype, to.at(row, 0));
    }
  }
  if (call.grad->bias.given()) add_bias_gradient<Real>(context, call, chunk, tile, du);
  return du;
}

// dU of a tile as Real, made before.
template <class Real>
Matrix<const Real> made_dlogits(const Context<Real>& context, const Call& call, const Chunk& chunk,
                                Tile tile) {
  const StoredMatrix<void> stored_tile = slot_logits(context, call, chunk).from(0, tile.begin);
  if (is_real<Real>(stored_tile.dtype)) {
    return {static_cast<const Real*>(stored_tile.data), stored_tile.ld};
  }
  const Matrix<Real> du = tile_buffer(context, call);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    to_real(stored_tile.dtype, stored_tile.at(row, 0), tile.size, du.row(row));
  }
  return du;
}

// Where the chunk's dX partial sums are formed. 16-bit sums (compact) are formed in float32, in the
// place of the converted X, and rounded once.
template <class Real>
Matrix<Real> hidden_sums(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  const std::int64_t columns = context.problem.hidden;
  if (!context.map.has(Buffer::grad_hidden)) {
    const StoredMatrix<void> result = stored(call.grad->hidden).from(chunk.first, 0);
    return {static_cast<Real*>(result.data), result.ld};
  }
  const bool direct = is_real<Real>(context.plan.grad_hidden_partial_dtype);
  const Buffer place = direct ? Buffer::grad_hidden : Buffer::hidden_tile;
  return {context.template buffer<Real>(call.workspace, place, direct ? chunk.slot : 0), columns};
}

// The chunk's dX partial sums in its slot.
template <class Real>
StoredMatrix<void> partial_sums(const Context<Real>& context, const Call& call,
                                const Chunk& chunk) {
  return {context.template buffer<std::byte>(call.workspace, Buffer::grad_hidden, chunk.slot),
          context.plan.grad_hidden_partial_dtype, context.problem.hidden};
}

// Rows [begin, end) of a chunk.
struct Run {
  std::int64_t begin;
  std::int64_t end;
};

// The rows that enter dW: all but those that give no gradient and whose X is not finite, as padding
// may be. 0 x NaN would be NaN in every element of dW.
template <class Real>
std::vector<Run> weight_gradient_rows(const Context<Real>& context, const Call& call,
                                      const Chunk& chunk, Matrix<const Real> hidden) {
  const RowCoefficients<Real>* coefficients = context.coefficients(call, chunk);
  std::vector<Run> runs = {{0, 0}};
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    const Real* x = hidden.row(row);
    const auto finite = [](Real value) { return std::isfinite(value); };
    if (vanishes(coefficients[row]) && !std::all_of(x, x + context.problem.hidden, finite)) {
      if (runs.back().begin < runs.back().end) runs.emplace_back();
      runs.back() = {row + 1, row + 1};
    } else {
      runs.back().end = row + 1;
    }
  }
  return runs;
}

// Step 8 of a tile: into the result or its accumulator where they are Real, else through a tile
// that is rounded into the result.
template <class Real>
void add_weight_gradient(const Context<Real>& context, const Call& call, const Chunk& chunk,
                         Tile tile, Matrix<const Real> dlogits, Matrix<const Real> hidden,
                         const std::vector<Run>& runs) {
  const std::int64_t columns = context.problem.hidden;
  const auto alpha = static_cast<Real>(context.chunk_scale(call, chunk));
  const bool first = chunk.index == 0;
  const bool accumulate = call.grad->accumulate_weight || !first;
  const StoredMatrix<void> result = stored(call.grad->weight).from(tile.begin, 0);
  const auto product = [&](bool add_to, Matrix<Real> sums) {
    for (const Run& run : runs) {
      multiply_tn<Real>(tile.size, columns, run.end - run.begin, alpha, dlogits.from_row(run.begin),
                        hidden.from_row(run.begin), add_to ? 1 : 0, sums);
      add_to = true;
    }
  };
  if (is_real<Real>(result.dtype)) {
    product(accumulate, {static_cast<Real*>(result.data), result.ld});
  } else if (context.accumulates_weight(call)) {
    Real* sums = context.template buffer<Real>(call.workspace, Buffer::grad_weight);
    product(!first, {sums + tile.begin * columns, columns});
  } else {
    Real* sums = context.template buffer<Real>(call.workspace, Buffer::weight_tile);
    product(false, {sums, columns});
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < tile.size; ++row) {
      store(sums + row * columns, columns, accumulate, result.dtype, result.at(row, 0));
    }
  }
}

}  // namespace

template <class Real>
void grad_hidden(const Context<Real>& context, const Call& call, const Chunk& chunk,
                 bool make_dlogits_too) {
  const RowSteps<Real> steps(context.problem, context.objective, call);
  const std::int64_t columns = context.problem.hidden;
  const auto alpha = static_cast<Real>(context.chunk_scale(call, chunk));
  const bool indirect = context.map.has(Buffer::grad_hidden);
  const Matrix<Real> sums = hidden_sums(context, call, chunk);
  if (tile_count(context) == 0) {  // a shard of padding adds nothing
    for (std::int64_t row = 0; row < chunk.rows; ++row)
      std::fill_n(sums.row(row), columns, Real(0));
  }
  for (std::int64_t index = 0; index < tile_count(context); ++index) {
    const Tile tile = tile_at(context, index);
    const Matrix<const Real> du = make_dlogits_too ? make_dlogits(context, call, chunk, tile, steps)
                                                   : made_dlogits(context, call, chunk, tile);
    const bool add_to = index > 0 || (!indirect && call.grad->accumulate_hidden);
    multiply_nn<Real>(chunk.rows, columns, tile.size, alpha, du, real_weight(context, call, tile),
                      add_to ? 1 : 0, sums);
    context.transport.progress();
  }
  if (!indirect || is_real<Real>(context.plan.grad_hidden_partial_dtype)) return;
  const StoredMatrix<void> partial = partial_sums(context, call, chunk);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    from_real(sums.row(row), columns, partial.dtype, partial.at(row, 0));
  }
}

template <class Real>
void grad_weight(const Context<Real>& context, const Call& call, const Chunk& chunk,
                 bool make_dlogits_too) {
  const bool weight = call.grad->weight.given();
  if (!weight && !make_dlogits_too) return;
  const RowSteps<Real> steps(context.problem, context.objective, call);
  const Matrix<const Real> hidden =
      weight ? real_hidden(context, call, chunk) : Matrix<const Real>{};
  const std::vector<Run> runs =
      weight ? weight_gradient_rows(context, call, chunk, hidden) : std::vector<Run>{};
  for (std::int64_t index = 0; index < tile_count(context); ++index) {
    const Tile tile = tile_at(context, index);
    const Matrix<const Real> du = make_dlogits_too ? make_dlogits(context, call, chunk, tile, steps)
                                                   : made_dlogits(context, call, chunk, tile);
    if (weight) add_weight_gradient(context, call, chunk, tile, du, hidden, runs);
    context.transport.progress();
  }
}

template <class Real>
void store_grad_hidden(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  if (!context.map.has(Buffer::grad_hidden)) return;
  const StoredMatrix<void> partial = partial_sums(context, call, chunk);
  const StoredMatrix<void> result = stored(call.grad->hidden);
  const std::int64_t columns = context.problem.hidden;
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < chunk.own_rows; ++i) {
    const std::int64_t row = source_row(call, chunk.own_first + i);
    std::array<Real, block_size> buffer;
    for (std::int64_t begin = 0; begin < columns; begin += block_size) {
      const std::int64_t count = std::min(block_size, columns - begin);
      to_real(partial.dtype, partial.at(chunk.own_begin + i, begin), count, buffer.data());
      store(buffer.data(), count, call.grad->accumulate_hidden, result.dtype,
            result.at(row, begin));
    }
  }
}

#define SHARDLOSS_INSTANTIATE(Real)                                                 \
  template void grad_hidden(const Context<Real>&, const Call&, const Chunk&, bool); \
  template void grad_weight(const Context<Real>&, const Call&, const Chunk&, bool); \
  template void store_grad_hidden(const Context<Real>&, const Call&, const Chunk&);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
