// The embedding: rows of W are copied, rows of dW summed. Bytes are moved as they are; sums are
// formed in Real and rounded once a chunk.
#include <algorithm>
#include <array>
#include <cstring>

#include "../hash.hpp"
#include "convert.hpp"
#include "headers.hpp"
#include "steps.hpp"
#include "vector_math.hpp"

namespace shardloss::detail::cpu {
namespace {

template <class Real>
std::int64_t* ids_of(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk) {
  return context.template buffer<std::int64_t>(call.workspace, Buffer::row_inputs, chunk.slot);
}

template <class Real>
StoredMatrix<void> packed_rows(const Context<Real>& context, const EmbedCall& call,
                               const Chunk& chunk) {
  return {context.template buffer<std::byte>(call.workspace, Buffer::hidden_rows, chunk.slot),
          context.problem.dtype, context.problem.hidden};
}

void copy_row(const StoredMatrix<const void>& from, std::int64_t row, const StoredMatrix<void>& to,
              std::int64_t to_row, std::int64_t columns) {
  std::memcpy(to.at(to_row, 0), from.at(row, 0),
              static_cast<std::size_t>(columns) * size_of(from.dtype));
}

// (column, position) of a row in one word, so that sorting brings each id's rows together, in
// order.
std::uint64_t key_of(std::int64_t column, std::int64_t position) {
  return static_cast<std::uint64_t>(column) << 32 | static_cast<std::uint64_t>(position);
}
std::int64_t column_in(std::uint64_t key) { return static_cast<std::int64_t>(key >> 32); }
std::int64_t position_in(std::uint64_t key) { return static_cast<std::int64_t>(key & 0xffffffffU); }

// grad_weight[column] += the rows at `keys`, all of that column.
template <class Real>
void add_rows(const StoredMatrix<const void>& rows, const std::uint64_t* keys, std::int64_t count,
              std::int64_t columns, const StoredMatrix<void>& result) {
  std::array<Real, block_size> sums;
  std::array<Real, block_size> row;
  for (std::int64_t begin = 0; begin < columns; begin += block_size) {
    const std::int64_t n = std::min(block_size, columns - begin);
    void* place = result.at(column_in(keys[0]), begin);
    to_real(result.dtype, place, n, sums.data());
    for (std::int64_t i = 0; i < count; ++i) {
      to_real(rows.dtype, rows.at(position_in(keys[i]), begin), n, row.data());
      add(row.data(), n, sums.data());
    }
    from_real(sums.data(), n, result.dtype, place);
  }
}

}  // namespace

template <class Real>
CallHeader embed_open(const Context<Real>& context, const EmbedCall& call) {
  CallHeader header = header_of(call);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::int64_t id = read_id(call.ids, row);
    if (context.problem.layout == Layout::replicated) header.targets = mix(header.targets, id);
    if (context.objective.kind_of_id(id) != RowKind::invalid || header.invalid++ != 0) continue;
    header.invalid_row = call.group_first + row;
    header.invalid_value = id;
  }
  own_header(context.plan, context.map, call.workspace, 0) = header;
  if (call.operation == Operation::embed_backward && !call.accumulate) {
    const StoredMatrix<void> rows = stored(call.grad_weight);
    const auto bytes = static_cast<std::size_t>(context.problem.hidden) * size_of(rows.dtype);
    for (std::int64_t row = 0; row < context.plan.shard.width; ++row) {
      std::memset(rows.at(row, 0), 0, bytes);
    }
  }
  return header;
}

template <class Real>
void embed_pack(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk) {
  std::int64_t* ids = ids_of(context, call, chunk) + chunk.own_begin;
  for (std::int64_t i = 0; i < chunk.own_rows; ++i) {
    ids[i] = read_id(call.ids, chunk.own_first + i);
  }
  if (call.operation == Operation::embed || !context.gathers()) return;
  const StoredMatrix<void> packed = packed_rows(context, call, chunk);
  for (std::int64_t i = 0; i < chunk.own_rows; ++i) {
    copy_row(stored(call.grad_output), chunk.own_first + i, packed, chunk.own_begin + i,
             context.problem.hidden);
  }
}

template <class Real>
void embed_lookup(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk) {
  const std::int64_t* ids = ids_of(context, call, chunk);
  const StoredMatrix<const void> weight = stored(call.weight);
  const StoredMatrix<void> rows = packed_rows(context, call, chunk);
  const std::int64_t columns = context.problem.hidden;
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    const std::int64_t column = context.objective.column_of(ids[row]);
    if (column >= 0) {
      copy_row(weight, column, rows, row, columns);
    } else {
      std::memset(rows.at(row, 0), 0, static_cast<std::size_t>(columns) * size_of(rows.dtype));
    }
  }
}

template <class Real>
void embed_store(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk) {
  const StoredMatrix<void> rows = packed_rows(context, call, chunk);
  const StoredMatrix<void> output = stored(call.output);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < chunk.own_rows; ++i) {
    copy_row({rows.data, rows.dtype, rows.ld}, chunk.own_begin + i, output, chunk.own_first + i,
             context.problem.hidden);
  }
}

template <class Real>
void embed_scatter(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk) {
  StoredMatrix<const void> rows = stored(call.grad_output).from(chunk.first, 0);
  if (context.gathers()) {
    const StoredMatrix<void> packed = packed_rows(context, call, chunk);
    rows = {packed.data, packed.dtype, packed.ld};
  }
  // The keys of this shard's rows take the place of the ids.
  std::int64_t* ids = ids_of(context, call, chunk);
  auto* keys = reinterpret_cast<std::uint64_t*>(ids);
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < chunk.rows; ++row) {
    const std::int64_t column = context.objective.column_of(ids[row]);
    if (column >= 0) keys[count++] = key_of(column, row);
  }
  std::sort(keys, keys + count);
  const StoredMatrix<void> result = stored(call.grad_weight);
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < count; ++begin) {
    if (begin > 0 && column_in(keys[begin]) == column_in(keys[begin - 1])) continue;
    std::int64_t end = begin + 1;
    while (end < count && column_in(keys[end]) == column_in(keys[begin])) ++end;
    add_rows<Real>(rows, keys + begin, end - begin, context.problem.hidden, result);
  }
}

#define SHARDLOSS_INSTANTIATE(Real)                                                 \
  template CallHeader embed_open(const Context<Real>&, const EmbedCall&);           \
  template void embed_pack(const Context<Real>&, const EmbedCall&, const Chunk&);   \
  template void embed_lookup(const Context<Real>&, const EmbedCall&, const Chunk&); \
  template void embed_store(const Context<Real>&, const EmbedCall&, const Chunk&);  \
  template void embed_scatter(const Context<Real>&, const EmbedCall&, const Chunk&);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
