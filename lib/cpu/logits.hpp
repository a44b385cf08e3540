/// \file
/// Chunks of logits: where they lie, the tiles in which they are treated, and X and W as the
/// products take them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "context.hpp"
#include "convert.hpp"

namespace shardloss::detail::cpu {

/// Columns [begin, begin + size) of the shard.
struct Tile {
  std::int64_t begin;
  std::int64_t size;
};

template <class Real>
std::int64_t tile_count(const Context<Real>& context) {
  return (context.plan.shard.vocab + context.map.tile - 1) / context.map.tile;
}

template <class Real>
Tile tile_at(const Context<Real>& context, std::int64_t index) {
  const std::int64_t begin = index * context.map.tile;
  return {begin, std::min(context.map.tile, context.plan.shard.vocab - begin)};
}

/// Whether elements of `dtype` are Real already.
template <class Real>
constexpr bool is_real(DType dtype) {
  return dtype == dtype_of<Real>();
}

/// The chunk's logits in its slot of the workspace.
template <class Real>
StoredMatrix<void> slot_logits(const Context<Real>& context, const Call& call, const Chunk& chunk);

/// Whether the chunk's logits outlive the call, in Saved.
template <class Real>
bool are_kept(const Context<Real>& context, const Call& call, const Chunk& chunk);

/// Where logits are made and dlogits are made from: Saved where they are kept, else the slot.
template <class Real>
StoredMatrix<void> made_logits(const Context<Real>& context, const Call& call, const Chunk& chunk);

/// The place of 16-bit logits' tile as Real.
template <class Real>
Matrix<Real> tile_buffer(const Context<Real>& context, const Call& call) {
  return {context.template buffer<Real>(call.workspace, Buffer::logits_tile), context.map.tile};
}

/// The chunk's rows of X as Real: those of the tensor, or converted.
template <class Real>
Matrix<const Real> real_hidden(const Context<Real>& context, const Call& call, const Chunk& chunk);

/// The tile's rows of W as Real, likewise.
template <class Real>
Matrix<const Real> real_weight(const Context<Real>& context, const Call& call, Tile tile);

/// SavedRow of the chunk's positions.
template <class Real>
SavedRow<Real>* saved_rows(const Call& call, const Chunk& chunk) {
  return reinterpret_cast<SavedRow<Real>*>(call.saved->memory) + chunk.first;
}

}  // namespace shardloss::detail::cpu
