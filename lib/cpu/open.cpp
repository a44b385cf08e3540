// Steps 0 and 1: one look at this rank's targets and weights, and the rows of a chunk.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../hash.hpp"
#include "../objective.hpp"
#include "convert.hpp"
#include "headers.hpp"
#include "steps.hpp"

namespace shardloss::detail::cpu {
namespace {

// The number of a computed row in the group. Where one rank has all rows it is the caller's own.
template <class Real>
std::int64_t group_row(const Context<Real>& context, const Call& call, std::int64_t computed) {
  return context.gathers() ? call.group_first + computed : source_row(call, computed);
}

std::int64_t target_of(const Call& call, std::int64_t row) {
  return call.in->targets.given() ? read_id(call.in->targets, row) : 0;
}

template <class Real>
void scan_class_weights(const Context<Real>& context, const Call& call) {
  Scalars& scalars = context.scalars(call);
  scalars.class_sum = static_cast<double>(context.problem.vocab);
  scalars.class_most = 1;
  const ConstTensor& weights = call.in->class_weights;
  if (!weights.given()) return;
  scalars.class_sum = scalars.class_most = 0;
  for (std::int64_t id = 0; id < context.problem.vocab; ++id) {
    const double weight = read<Real>(weights, id);
    scalars.class_sum += weight;
    scalars.class_most = std::max(scalars.class_most, std::abs(weight));
  }
}

// This rank's share of the denominator, and what it finds among its targets.
template <class Real>
void scan_rows(const Context<Real>& context, const Call& call, CallHeader& header) {
  const bool soft = context.problem.soft_targets;
  const bool replicated = context.problem.layout == Layout::replicated;
  const ConstTensor& class_weights = call.in->class_weights;
  for (std::int64_t computed = 0; computed < call.rows; ++computed) {
    const std::int64_t row = source_row(call, computed);
    const std::int64_t target = target_of(call, row);
    if (replicated) {
      header.targets = mix(header.targets, target);
      if (call.in->row_index.given()) header.targets = mix(header.targets, row);
    }
    const RowKind kind = context.objective.kind_of(target);
    if (kind == RowKind::ordinary) {
      const double weight = read_or<Real>(call.in->token_weights, row, 1);
      header.denominator += soft ? weight : weight * read_or<Real>(class_weights, target, 1);
      ++header.counted;
    } else if (kind == RowKind::invalid && header.invalid++ == 0) {
      header.invalid_row = group_row(context, call, computed);
      header.invalid_value = target;
    }
  }
}

// The values of rows that a row index leaves out; combine overwrites those of the others.
template <class Real>
void fill_left_out_rows(const Context<Real>& context, const Call& call) {
  if (!call.in->row_index.given()) return;
  const Outputs& out = *call.out;
  constexpr Real unknown = quiet_nan<Real>;
  for (std::int64_t row = 0; row < call.hidden_rows; ++row) {
    if (context.problem.reduction == Reduction::none) write<Real>(out.loss, row, 0);
    write<Real>(out.row_loss, row, 0);
    write<Real>(out.lse, row, unknown);
    write<Real>(out.target_logprob, row, 0);
    write<Real>(out.entropy, row, unknown);
    write<std::int64_t>(out.argmax, row, -1);
    write<std::uint8_t>(out.correct, row, 0);
  }
}

void clear_rows(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  const StoredMatrix<void> rows = stored(tensor);
  const auto bytes = static_cast<std::size_t>(tensor.size(1)) * size_of(tensor.dtype());
  for (std::int64_t row = begin; row < end; ++row) std::memset(rows.at(row, 0), 0, bytes);
}

// Zeroes what no product will write.
template <class Real>
void clear_gradients(const Context<Real>& context, const Call& call) {
  const Gradients& grad = *call.grad;
  const Shard& shard = context.plan.shard;
  if (grad.hidden.given() && call.in->row_index.given() && !grad.accumulate_hidden) {
    clear_rows(grad.hidden, 0, call.hidden_rows);
  }
  if (grad.weight.given() && !grad.accumulate_weight) {
    clear_rows(grad.weight, call.chunks.empty() ? 0 : shard.vocab, shard.width);
  }
  if (grad.bias.given()) {
    std::fill_n(context.template buffer<Real>(call.workspace, Buffer::grad_bias), shard.vocab,
                Real(0));
  }
}

}  // namespace

template <class Real>
CallHeader open(const Context<Real>& context, const Call& call) {
  CallHeader header = header_of(call);
  scan_rows(context, call, header);
  for (int slot = 0; slot < context.plan.slots; ++slot) {
    own_header(context.plan, context.map, call.workspace, slot) = header;
  }
  context.scalars(call) = {};
  context.scalars(call).denominator = header.denominator;
  scan_class_weights(context, call);
  fill_left_out_rows(context, call);
  clear_gradients(context, call);
  return header;
}

template <class Real>
void add_denominator(const Context<Real>& context, const Call& call, const Tensor& total) {
  CallHeader header{};
  scan_rows(context, call, header);
  *static_cast<Real*>(total.data()) += static_cast<Real>(header.denominator);
}

template <class Real>
void pack_rows(const Context<Real>& context, const Call& call, const Chunk& chunk) {
  const Upstreams& up = *call.up;
  RowInput<Real>* inputs = context.inputs(call, chunk) + chunk.own_begin;
  for (std::int64_t i = 0; i < chunk.own_rows; ++i) {
    const std::int64_t row = source_row(call, chunk.own_first + i);
    RowInput<Real> input{};
    input.target = target_of(call, row);
    input.row = group_row(context, call, chunk.own_first + i);
    input.weight = read_or<Real>(call.in->token_weights, row, 1);
    input.upstream_loss = read_or<Real>(up.loss, row, 1);
    input.upstream_lse = read_or<Real>(up.lse, row, 0);
    input.upstream_logprob = read_or<Real>(up.target_logprob, row, 0);
    input.upstream_entropy = read_or<Real>(up.entropy, row, 0);
    inputs[i] = input;
  }
  if (!context.map.has(Buffer::hidden_rows)) return;
  const StoredMatrix<const void> hidden = stored(call.in->hidden);
  const auto bytes = static_cast<std::size_t>(context.problem.hidden) * size_of(hidden.dtype);
  auto* packed =
      context.template buffer<std::byte>(call.workspace, Buffer::hidden_rows, chunk.slot);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < chunk.own_rows; ++i) {
    const std::int64_t row = source_row(call, chunk.own_first + i);
    std::memcpy(packed + static_cast<std::size_t>(chunk.own_begin + i) * bytes, hidden.at(row, 0),
                bytes);
  }
}

#define SHARDLOSS_INSTANTIATE(Real)                                                \
  template CallHeader open(const Context<Real>&, const Call&);                     \
  template void add_denominator(const Context<Real>&, const Call&, const Tensor&); \
  template void pack_rows(const Context<Real>&, const Call&, const Chunk&);
SHARDLOSS_INSTANTIATE(float)
SHARDLOSS_INSTANTIATE(double)
#undef SHARDLOSS_INSTANTIATE

}  // namespace shardloss::detail::cpu
