/// \file
/// The steps of a pass on the CPU, one function for each that Backend declares; ../backend.hpp says
/// what each does.
#pragma once

#include "context.hpp"

namespace shardloss::detail::cpu {

// open.cpp

/// Returns this rank's header.
template <class Real>
CallHeader open(const Context<Real>& context, const Call& call);
/// total += this rank's share of the denominator.
template <class Real>
void add_denominator(const Context<Real>& context, const Call& call, const Tensor& total);
template <class Real>
void pack_rows(const Context<Real>& context, const Call& call, const Chunk& chunk);

// logits.cpp

template <class Real>
void logits_and_statistics(const Context<Real>& context, const Call& call, const Chunk& chunk);
template <class Real>
void recompute_logits(const Context<Real>& context, const Call& call, const Chunk& chunk);

// combine.cpp

template <class Real>
void combine(const Context<Real>& context, const Call& call, const Chunk& chunk);
template <class Real>
void recompute_coefficients(const Context<Real>& context, const Call& call, const Chunk& chunk);

// gradients.cpp

template <class Real>
void grad_hidden(const Context<Real>& context, const Call& call, const Chunk& chunk,
                 bool make_dlogits);
template <class Real>
void grad_weight(const Context<Real>& context, const Call& call, const Chunk& chunk,
                 bool make_dlogits);
template <class Real>
void store_grad_hidden(const Context<Real>& context, const Call& call, const Chunk& chunk);

// finish.cpp

template <class Real>
void finish(const Context<Real>& context, const Call& call);

// embedding.cpp

template <class Real>
CallHeader embed_open(const Context<Real>& context, const EmbedCall& call);
template <class Real>
void embed_pack(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk);
template <class Real>
void embed_lookup(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk);
template <class Real>
void embed_store(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk);
template <class Real>
void embed_scatter(const Context<Real>& context, const EmbedCall& call, const Chunk& chunk);

}  // namespace shardloss::detail::cpu
