// The order of the steps of an embedding call, and every point at which ranks talk.
//
//   0 open             header, exchanged
//   1 pack, gather     the chunk's ids; row_sharded: from their owners
//   2 look-up          rows of W or zeros, summed over ranks; or
//     scatter          row_sharded: gradient rows from their owners; then into dW_r
//   3 close            CUDA: one all-gather of headers
#include <vector>

#include "chunks.hpp"
#include "pass.hpp"
#include "run_or_fail.hpp"

namespace shardloss::detail {
namespace {

class EmbeddingPass {
 public:
  EmbeddingPass(const EmbedCall& call, const Plan& plan, const WorkspaceMap& map, Backend& backend,
                Transport& transport)
      : call_(call), plan_(plan), map_(map), backend_(backend), transport_(transport) {}

  void run() {
    backend_.embed_open(call_);
    agree();
    for (const Chunk& chunk : call_.chunks) {
      transport_.note_step(call_.operation == Operation::embed ? "look-up" : "scatter",
                           call_.number, chunk.index);
      backend_.embed_pack(call_, chunk);
      if (gathers()) wait(all_gather(Buffer::row_inputs, chunk, sizeof(std::int64_t)));
      if (call_.operation == Operation::embed) {
        look_up(chunk);
      } else {
        scatter(chunk);
      }
    }
    if (closes(plan_) && !call_.chunks.empty())
      close_call(map_, backend_, transport_, call_.workspace, call_.stream);
    backend_.embed_finish(call_);
  }

 private:
  void agree() {
    if (transport_.size() == 1) return;
    wait(all_gather_equal(transport_, buffer(Buffer::exchange, 0), map_.exchange_bytes,
                          call_.stream));
    backend_.embed_agree(call_);
  }

  // One rank owns each id, the others add zeros: the sum is exact in any dtype.
  void look_up(const Chunk& chunk) {
    backend_.embed_lookup(call_, chunk);
    const std::int64_t hidden = call_.output.size(1);
    void* rows = buffer(Buffer::hidden_rows, chunk.slot);
    const DType dtype = call_.output.dtype();
    if (gathers()) {
      wait(transport_.reduce_scatter(rows, scaled(chunk.segments, hidden), dtype, call_.stream));
    } else if (transport_.size() > 1) {
      wait(transport_.all_reduce(rows, chunk.rows * hidden, dtype, call_.stream));
    }
    backend_.embed_store(call_, chunk);
  }

  void scatter(const Chunk& chunk) {
    const auto element = static_cast<std::int64_t>(size_of(call_.grad_output.dtype()));
    if (gathers())
      wait(all_gather(Buffer::hidden_rows, chunk, element * call_.grad_output.size(1)));
    backend_.embed_scatter(call_, chunk);
  }

  Ticket all_gather(Buffer name, const Chunk& chunk, std::int64_t row_bytes) {
    return transport_.all_gather(buffer(name, chunk.slot), scaled(chunk.segments, row_bytes),
                                 call_.stream);
  }

  void wait(Ticket ticket) {
    if (ticket.id != 0) transport_.wait(ticket, call_.stream);
  }

  bool gathers() const { return !call_.chunks.empty() && !call_.chunks.front().segments.empty(); }
  void* buffer(Buffer name, int slot) const { return map_.in(call_.workspace, name, slot); }

  const EmbedCall& call_;
  const Plan& plan_;
  const WorkspaceMap& map_;
  Backend& backend_;
  Transport& transport_;
};

}  // namespace

void run_embedding(const EmbedCall& call, const Plan& plan, const WorkspaceMap& map,
                   Backend& backend, Transport& transport) {
  run_or_fail(transport, [&] { EmbeddingPass(call, plan, map, backend, transport).run(); });
}

}  // namespace shardloss::detail
