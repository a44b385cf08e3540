// The order of the steps of a pass, and every point at which ranks talk.
//
//   0 open             denominator, header
//   1 pack, gather     row_sharded: the chunk's rows from their owners
//   2 logits           U = X W_r^T
//   3 statistics       per row and shard
//   4 exchange         one all-gather of [header | statistics], combined in rank order
//   5 coefficients     per row; in Backend::combine, or recompute
//   6 dlogits          U becomes dU in place; before the first of 7 and 8
//   7 dX               partial sums, all-reduced or reduce-scattered
//   8 dW               dW_r += dU^T X
//   9 close            CUDA: one all-gather of headers
//
// On one rank nothing has to be asked between 3 and 6: a backend may do 5 and 6 with 3.
// With several ranks, 2 and 3 of the next chunk run while 4 of this one is on the wire.
#include "pass.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "chunks.hpp"
#include "run_or_fail.hpp"
#include "shardloss/error.hpp"

namespace shardloss::detail {
namespace {

class Pass {
 public:
  Pass(const Call& call, const Plan& plan, const WorkspaceMap& map, Backend& backend,
       Transport& transport)
      : call_(call), plan_(plan), map_(map), backend_(backend), transport_(transport) {}

  void run() {
    step("open", -1);
    backend_.open(call_);
    if (opens_alone()) {
      start_exchange(0);
      finish_exchange(0, gathers());
    }
    for (std::size_t i = 0; i < opening_chunks(); ++i) gather_rows(chunks()[i]);
    if (call_.operation == Operation::backward) {
      backward_chunks();
    } else {
      forward_chunks();
    }
    for (const Chunk& chunk : chunks()) store_grad_hidden(chunk);  // those still on the wire
    if (closes(plan_) && !chunks().empty()) {
      step("close", -1);
      close_call(map_, backend_, transport_, call_.workspace, call_.stream);
    }
    step("finish", -1);
    backend_.finish(call_);
  }

 private:
  // A backward has no statistics that could carry the header; and the denominator of rows that lie
  // on several ranks must be known before the first coefficients.
  bool opens_alone() const {
    return transport_.size() > 1 &&
           (call_.operation == Operation::backward || gathers() || chunks().empty());
  }

  void forward_chunks() {
    for (const Chunk& chunk : chunks()) {
      if (chunk.index == 0 || slots() == 1) {
        logits_and_statistics(chunk);
        start_exchange(chunk.slot);
      }
      const Chunk* next = slots() > 1 && !chunk.last ? &chunk + 1 : nullptr;
      if (next != nullptr) {
        // Later exchanges are followed by a small kernel, the first one by a product.
        if (chunk.index == 0) backend_.give_way(call_.stream);
        logits_and_statistics(*next);
      }
      finish_exchange(chunk.slot, false);
      // Not before this rank knows that the others agree: an error leaves nothing on the wire.
      if (next != nullptr) start_exchange(next->slot);
      step("combine", chunk.index);
      backend_.combine(call_, chunk);
      gradients(chunk);
    }
  }

  void backward_chunks() {
    for (const Chunk& chunk : chunks()) {
      arrive(chunk);
      step("recompute", chunk.index);
      backend_.recompute(call_, chunk);
      gradients(chunk);
    }
  }

  // Steps 6 to 8, and the next rows into what the chunk no longer needs. dX goes first, so that its
  // reduction moves behind dW; but where rows are still to be gathered, dW goes first and frees
  // their place, so that the gather moves behind dX and the reduction behind the next logits.
  void gradients(const Chunk& chunk) {
    const bool hidden = call_.grad->hidden.given();
    const bool weight = call_.weight_gradients();
    const bool weight_first = weight && gathers() && ahead_of(chunk) < chunks().size();
    if (weight_first) grad_weight(chunk, true);
    if (weight_first || !weight) gather_ahead(chunk);
    if (hidden) grad_hidden(chunk, !weight_first);
    if (weight && !weight_first) {
      grad_weight(chunk, !hidden);
      gather_ahead(chunk);
    }
  }

  void grad_hidden(const Chunk& chunk, bool make_dlogits) {
    if (chunk.index >= plan_.slots) store_grad_hidden(*(&chunk - plan_.slots));
    step("grad_hidden", chunk.index);
    backend_.grad_hidden(call_, chunk, make_dlogits);
    start_reduction(chunk);
  }

  void grad_weight(const Chunk& chunk, bool make_dlogits) {
    step("grad_weight", chunk.index);
    backend_.grad_weight(call_, chunk, make_dlogits);
  }

  void gather_ahead(const Chunk& chunk) {
    if (ahead_of(chunk) >= chunks().size()) return;
    gather_rows(chunks()[ahead_of(chunk)]);
    if (gathers()) backend_.give_way(call_.stream);
  }

  // Those whose rows set out before anything else.
  std::size_t opening_chunks() const { return std::min(chunks().size(), slots()); }

  // The chunk whose rows take the place of this one's.
  std::size_t ahead_of(const Chunk& chunk) const {
    return static_cast<std::size_t>(chunk.index) + slots();
  }

  // Step 1: the chunk's rows set out; they are awaited where they are used first. The large part
  // goes first: it takes the head start that it was given, the small one may wait.
  void gather_rows(const Chunk& chunk) {
    step("pack", chunk.index);
    backend_.pack_rows(call_, chunk);
    if (!gathers()) return;
    const auto element = static_cast<std::int64_t>(size_of(call_.in->hidden.dtype()));
    const auto record =
        static_cast<std::int64_t>(map_.bytes(Buffer::row_inputs)) / plan_.chunk_rows;
    rows_[at(chunk)] = {all_gather(Buffer::hidden_rows, chunk, element * call_.in->hidden.size(1)),
                        all_gather(Buffer::row_inputs, chunk, record)};
  }

  Ticket all_gather(Buffer name, const Chunk& chunk, std::int64_t row_bytes) {
    return transport_.all_gather(buffer(name, chunk.slot), scaled(chunk.segments, row_bytes),
                                 call_.stream);
  }

  void arrive(const Chunk& chunk) {
    for (Ticket& ticket : rows_[at(chunk)]) wait(ticket);
    // The second chunk's rows are on the wire behind the first's.
    if (gathers() && chunk.index == 0 && opening_chunks() > 1) backend_.give_way(call_.stream);
  }

  void logits_and_statistics(const Chunk& chunk) {
    arrive(chunk);
    step("logits", chunk.index);
    backend_.logits_and_statistics(call_, chunk);
  }

  // Step 4, on the wire.
  void start_exchange(int slot) {
    if (transport_.size() == 1) return;
    exchange_[static_cast<std::size_t>(slot)] = all_gather_equal(
        transport_, buffer(Buffer::exchange, slot), map_.exchange_bytes, call_.stream);
  }

  void finish_exchange(int slot, bool sum_denominators) {
    if (transport_.size() == 1) return;
    wait(exchange_[static_cast<std::size_t>(slot)]);
    backend_.agree(call_, slot, sum_denominators);
  }

  // Step 7, on the wire.
  void start_reduction(const Chunk& chunk) {
    if (!map_.has(Buffer::grad_hidden)) return;  // the product wrote the result
    const std::int64_t hidden = call_.in->hidden.size(1);
    void* data = buffer(Buffer::grad_hidden, chunk.slot);
    const DType dtype = plan_.grad_hidden_partial_dtype;
    Ticket ticket;
    if (gathers()) {
      ticket = transport_.reduce_scatter(data, scaled(chunk.segments, hidden), dtype, call_.stream);
    } else if (transport_.size() > 1) {
      ticket = transport_.all_reduce(data, chunk.rows * hidden, dtype, call_.stream);
    }
    if (ticket.id != 0) backend_.give_way(call_.stream);
    reduction_[at(chunk)] = {ticket, &chunk};
  }

  // The reduced sums of `chunk` into the result, where it is the one whose sums the slot still
  // holds.
  void store_grad_hidden(const Chunk& chunk) {
    Reduction& reduction = reduction_[at(chunk)];
    if (reduction.chunk != &chunk) return;
    wait(reduction.ticket);
    step("store_grad_hidden", chunk.index);
    backend_.store_grad_hidden(call_, chunk);
    reduction.chunk = nullptr;
  }

  void wait(Ticket& ticket) {
    if (ticket.id != 0) transport_.wait(ticket, call_.stream);
    ticket = {};
  }

  void step(const char* name, std::int64_t chunk) {
    transport_.note_step(name, call_.number, chunk);
  }

  bool gathers() const { return !call_.chunks.empty() && !call_.chunks.front().segments.empty(); }
  const std::vector<Chunk>& chunks() const { return call_.chunks; }
  std::size_t slots() const { return static_cast<std::size_t>(plan_.slots); }
  static std::size_t at(const Chunk& chunk) { return static_cast<std::size_t>(chunk.slot); }
  void* buffer(Buffer name, int slot) const { return map_.in(call_.workspace, name, slot); }

  struct Reduction {
    Ticket ticket;
    const Chunk* chunk = nullptr;
  };

  const Call& call_;
  const Plan& plan_;
  const WorkspaceMap& map_;
  Backend& backend_;
  Transport& transport_;
  std::array<Ticket, 2> exchange_{};
  std::array<std::array<Ticket, 2>, 2> rows_{};
  std::array<Reduction, 2> reduction_{};
};

}  // namespace

Ticket all_gather_equal(Transport& transport, void* data, std::int64_t bytes, Stream stream) {
  const std::vector<std::int64_t> from_each(static_cast<std::size_t>(transport.size()), bytes);
  return transport.all_gather(data, from_each, stream);
}

void close_call(const WorkspaceMap& map, Backend& backend, Transport& transport,
                std::byte* workspace, Stream stream) {
  backend.close(workspace, stream);
  transport.wait(all_gather_equal(transport, map.in(workspace, Buffer::exchange, 0),
                                  sizeof(CallHeader), stream),
                 stream);
  backend.agree_closed(workspace, stream);
}

void run_pass(const Call& call, const Plan& plan, const WorkspaceMap& map, Backend& backend,
              Transport& transport) {
  run_or_fail(transport, [&] { Pass(call, plan, map, backend, transport).run(); });
}

void refuse_call(std::uint64_t number, const WorkspaceMap& map, Transport& transport) {
  const auto segment = static_cast<std::size_t>(map.exchange_bytes);
  const std::size_t size = segment * static_cast<std::size_t>(transport.size());
  auto exchange = std::make_unique<std::byte[]>(size);
  CallHeader header{};
  header.verdict = refused;
  header.call = number;
  std::memcpy(exchange.get() + segment * static_cast<std::size_t>(transport.rank()), &header,
              sizeof header);
  try {
    transport.wait(all_gather_equal(transport, exchange.get(), map.exchange_bytes, {}), {});
  } catch (const Error&) {
    (void)exchange.release();  // a late peer may still write into it: leaked on purpose
    throw;
  }
}

}  // namespace shardloss::detail
