/// \file
/// One call, validated and cut into chunks: what the pass and the backends work from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "records.hpp"
#include "shardloss/loss.hpp"

namespace shardloss::detail {

/// One chunk: for each rank r (row_sharded) or for all of them (replicated) a run of rows.
///
/// Positions count the rows within the chunk. replicated: position j is computed row first + j.
/// row_sharded: the ranks' segments follow each other in rank order.
struct Chunk {
  std::int64_t index = 0;
  int slot = 0;            ///< which of the plan's slots it uses: index modulo slots
  std::int64_t first = 0;  ///< rows in all chunks before it: the place of its rows in Saved
  std::int64_t rows = 0;
  std::int64_t own_begin = 0;  ///< this rank's positions [own_begin, own_begin + own_rows)
  std::int64_t own_rows = 0;
  std::int64_t own_first = 0;          ///< the first of them among this rank's computed rows
  std::vector<std::int64_t> segments;  ///< rows of each rank; row_sharded only
  bool last = false;
};

/// One call. The tensors are the caller's; pointers are valid for the call.
struct Call {
  Operation operation = Operation::forward;
  const Inputs* in = nullptr;
  const Outputs* out = nullptr;     ///< never null; nothing given in backward
  const Upstreams* up = nullptr;    ///< never null
  const Gradients* grad = nullptr;  ///< never null; nothing given in forward
  Saved::State* saved = nullptr;    ///< forward: to fill or null; backward: to read
  Stream stream{};
  std::byte* workspace = nullptr;

  bool saves = false;              ///< a Saved was given; `saved` is null where it was moved from
  std::uint64_t object = 0;        ///< CallHeader::object
  std::uint64_t number = 0;        ///< of this object's calls; CUDA counts on the device
  std::int64_t rows = 0;           ///< this rank's computed rows
  std::int64_t hidden_rows = 0;    ///< this rank's rows of X: outputs and dX have as many
  std::int64_t group_rows = 0;     ///< computed rows of the group
  std::int64_t group_first = 0;    ///< number of this rank's first computed row in the group
  std::uint64_t rows_word = 0;     ///< CallHeader::rows
  std::uint64_t outputs_word = 0;  ///< CallHeader::outputs
  std::uint64_t saved_word = 0;    ///< CallHeader::saved
  std::vector<Chunk> chunks{};

  bool gradients() const {
    return grad->hidden.given() || grad->weight.given() || grad->bias.given();
  }
  bool weight_gradients() const { return grad->weight.given() || grad->bias.given(); }
};

/// One embedding call, in the same terms.
struct EmbedCall {
  Operation operation = Operation::embed;
  ConstTensor ids;
  ConstTensor weight;       ///< forward
  Tensor output;            ///< forward
  ConstTensor grad_output;  ///< backward
  Tensor grad_weight;       ///< backward
  bool accumulate = true;
  Stream stream{};
  std::byte* workspace = nullptr;

  std::uint64_t object = 0;
  std::uint64_t number = 0;
  std::int64_t rows = 0;
  std::int64_t group_rows = 0;
  std::int64_t group_first = 0;
  std::uint64_t rows_word = 0;
  std::vector<Chunk> chunks{};
};

/// The words of a call's header that the host knows.
template <class AnyCall>
CallHeader header_of(const AnyCall& call) {
  CallHeader header{};
  header.object = call.object;
  header.call = call.number;
  header.operation = static_cast<std::uint64_t>(call.operation);
  header.rows = call.rows_word;
  if constexpr (std::is_same_v<AnyCall, Call>) {
    header.outputs = call.outputs_word;
    header.saved = call.saved_word;
  }
  return header;
}

/// What lies between the rows of a caller's matrix. The stride of a single row may be anything;
/// products want one that fits.
template <bool Const>
std::int64_t row_stride(const BasicTensor<Const>& matrix) {
  return matrix.size(0) > 1 ? matrix.stride(0) : matrix.size(1);
}

/// Bits of CallHeader::outputs.
enum OutputBit : std::uint64_t {
  output_loss = 1,
  output_row_loss = 2,
  output_lse = 4,
  output_logprob = 8,
  output_entropy = 16,
  output_argmax = 32,
  output_correct = 64,
  output_counted = 128,
  output_parts = 256,
  output_grad_hidden = 512,
  output_saved = 1024,
};

}  // namespace shardloss::detail

namespace shardloss {

/// The memory of a Saved: SavedRow for max_rows rows, then the kept logits [kept_rows, columns].
struct Saved::State {
  std::byte* memory = nullptr;
  void (*release)(std::byte*) = nullptr;  ///< null: the caller's memory
  Device device;
  std::uint64_t loss = 0;  ///< detail::Instance::id of the Loss that made it
  // Of the forward that filled it.
  std::int64_t group_rows = -1;  ///< -1: none has
  std::uint64_t rows_word = 0;
  std::uint64_t call = 0;
  ~State() {
    if (release != nullptr) release(memory);
  }
};

}  // namespace shardloss
