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

/// Whether elements of `dtype` are Real already.
template <class Real>
constexpr bool is_real(DType dtype) {
  return dtype == dtype_of<Real>();
}

/// Columns of a tile. The workspace has tiles of map.tile columns to convert into, and transports
/// want to move that often; with neither, wider tiles make threads wait for each other less often.
template <class Real>
std::int64_t tile_size(const Context<Real>& context) {
  constexpr std::int64_t wide = 2048;
  const bool free = context.plan.ranks == 1 && is_real<Real>(context.problem.dtype);
  return free ? std::max(wide, context.map.tile) : context.map.tile;
}

template <class Real>
std::int64_t tile_count(const Context<Real>& context) {
  return (context.plan.shard.vocab + tile_size(context) - 1) / tile_size(context);
}

template <class Real>
Tile tile_at(const Context<Real>& context, std::int64_t index) {
  const std::int64_t begin = index * tile_size(context);
  return {begin, std::min(tile_size(context), context.plan.shard.vocab - begin)};
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
