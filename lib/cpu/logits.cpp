// Steps 2 and 3: logits of a chunk, tile by tile, and each tile's statistics while it is in the
// cache.
#include "logits.hpp"

#include "headers.hpp"
#include "row_steps.hpp"
#include "steps.hpp"

namespace shardloss::detail::cpu {
namespace {

template <class Real>
Matrix<const Real> as_real(const StoredMatrix<const void>& from, std::int64_t rows,
                           std::int64_t columns, Real* converted) {
  if (is_real<Real>(from.dtype)) return {static_cast<const Real*>(from.data), from.ld};
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    to_real(from.dtype, from.at(row, 0), columns, converted + row * columns);
  }
  return {converted, columns};
}

// The logits of a chunk, and where `statistics` is not null this shard's of each row. 16-bit logits
// are rounded before their statistics are taken: probabilities then sum to 1 whatever the rounding
// did, and p - 1 of a confident row keeps its sign.
template <class Real>
void make_logits(const Context<Real>& context, const Call& call, const Chunk& chunk,
                 RowStatistics<Real>* statistics) {
  const RowSteps<Real> steps(context.problem, context.objective, call);
  const StoredMatrix<void> logits = made_logits(context, call, chunk);
  const bool direct = is_real<Real>(logits.dtype);
  const RowInput<Real>* inputs = context.inputs(call, chunk);
  const Matrix<const Real> hidden = real_hidden(context, call, chunk);
  for (std::int64_t index = 0; index < tile_count(context); ++index) {
    const Tile tile = tile_at(context, index);
    const Matrix<Real> u =
        direct ? Matrix<Real>{static_cast<Real*>(logits.at(0, tile.begin)), logits.ld}
               : tile_buffer(context, call);
    multiply_nt<Real>(chunk.rows, tile.size, context.problem.hidden, 1, hidden,
                      real_weight(context, call, tile), 0, u);
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < chunk.rows; ++row) {
      if (steps.has_bias()) steps.add_bias(tile.begin, tile.size, u.row(row));
      if (!direct) {
        void* stored_row = logits.at(row, tile.begin);
        from_real(u.row(row), tile.size, logits.dtype, stored_row);
        if (statistics != nullptr) to_real(logits.dtype, stored_row, tile.size, u.row(row));
      }
      if (statistics != nullptr) {
        steps.add_statistics(u.row(row), tile.begin, tile.size, inputs[row], statistics[row]);
      }
    }
    context.transport.progress();
  }
}

}  // namespace

template <class Real>
StoredMatrix<void> slot_logits(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  return {context.template buffer<std::byte>(call.workspace, Buffer::logits, chunk.slot),
          context.plan.logits_dtype, logits_ld(context.plan.shard.vocab)};
}

template <class Real>
bool are_kept(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  return call.saved != nullptr && chunk.first + chunk.rows <= context.plan.kept_rows;
}

template <class Real>
StoredMatrix<void> made_logits(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  StoredMatrix<void> logits = slot_logits(context, call, chunk);
  if (!are_kept(context, call, chunk)) return logits;
  logits.data = call.saved->memory + saved_rows_bytes(context.problem);
  return logits.from(chunk.first, 0);
}

template <class Real>
Matrix<const Real> real_hidden(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  const std::int64_t columns = context.problem.hidden;
  StoredMatrix<const void> rows = stored(call.in->hidden).from(chunk.first, 0);
  if (context.map.has(Buffer::hidden_rows)) {
    rows.data = context.template buffer<std::byte>(call.workspace, Buffer::hidden_rows, chunk.slot);
    rows.ld = columns;
  }
  return as_real(rows, chunk.rows, columns,
                 context.template buffer<Real>(call.workspace, Buffer::hidden_tile));
}

template <class Real>
Matrix<const Real> real_weight(const Context<Real>& context, const Call& call, Tile tile) {
  return as_real(stored(call.in->weight).from(tile.begin, 0), tile.size, context.problem.hidden,
                 context.template buffer<Real>(call.workspace, Buffer::weight_tile));
}

template <class Real>
void logits_and_statistics(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  CallHeader& header = own_header(context.plan, context.map, call.workspace, chunk.slot);
  header.chunk = static_cast<std::uint64_t>(chunk.index);
  auto* statistics = reinterpret_cast<RowStatistics<Real>*>(&header + 1);
  std::fill_n(statistics, chunk.rows, no_statistics(context.objective));
  make_logits(context, call, chunk, statistics);
}

template <class Real>
void recompute_logits(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  if (!are_kept(context, call, chunk)) {
    make_logits(context, call, chunk, static_cast<RowStatistics<Real>*>(nullptr));
  }
}

#define SHARDLOSS_INSTANTIATE(Real)                                                         \
  template StoredMatrix<void> slot_logits(const Context<Real>&, const Call&, const Chunk&); \
  template bool are_kept(const Context<Real>&, const Call&, const Chunk&);                  \
  template StoredMatrix<void> made_logits(const Context<Real>&, const Call&, const Chunk&); \
  template Matrix<const Real> real_hidden(const Context<Real>&, const Call&, const Chunk&); \
  template Matrix<const Real> real_weight(const Context<Real>&, const Call&, Tile);         \
  template void logits_and_statistics(const Context<Real>&, const Call&, const Chunk&);     \
  template void recompute_logits(const Context<Real>&, const Call&, const Chunk&);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
