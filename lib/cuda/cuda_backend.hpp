/// \file
/// One rank's mathematics on a CUDA device: where things lie, and which kernel does which step.
#pragma once

#include <memory>
#include <nvtx3/nvtx3.hpp>
#include <set>
#include <string>

#include "../backend.hpp"
#include "gemm.hpp"
#include "kernels.hpp"
#include "resources.hpp"

namespace shardloss::detail::cuda {

/// Steps appear under this name in a profile.
struct ProfileDomain {
  static constexpr const char* name = "shardloss";
};
using ProfileRange = nvtx3::scoped_range_in<ProfileDomain>;

class CudaBackend final : public Backend {
 public:
  /// On the current device, `device`.
  CudaBackend(const Problem& problem, const Plan& plan, const WorkspaceMap& map,
              Transport& transport, Device device);
  ~CudaBackend() override;

  std::byte* allocate(std::size_t bytes) override;
  void (*releaser() const noexcept)(std::byte*) override;
  void check_memory(const void* memory, const char* name) const override;
  void choose_gemms(Plan& plan) override;

  void open(const Call& call) override;
  void agree(const Call& call, int slot, bool sum_denominators) override;
  void pack_rows(const Call& call, const Chunk& chunk) override;
  void logits_and_statistics(const Call& call, const Chunk& chunk) override;
  void combine(const Call& call, const Chunk& chunk) override;
  void recompute(const Call& call, const Chunk& chunk) override;
  void grad_hidden(const Call& call, const Chunk& chunk, bool make_dlogits) override;
  void grad_weight(const Call& call, const Chunk& chunk, bool make_dlogits) override;
  void store_grad_hidden(const Call& call, const Chunk& chunk) override;
  void give_way(Stream stream) override;
  void close(std::byte* workspace, Stream stream) override;
  void agree_closed(std::byte* workspace, Stream stream) override;
  void finish(const Call& call) override;
  void add_denominator(const Call& call, const Tensor& total) override;

  void embed_open(const EmbedCall& call) override;
  void embed_agree(const EmbedCall& call) override;
  void embed_pack(const EmbedCall& call, const Chunk& chunk) override;
  void embed_lookup(const EmbedCall& call, const Chunk& chunk) override;
  void embed_store(const EmbedCall& call, const Chunk& chunk) override;
  void embed_scatter(const EmbedCall& call, const Chunk& chunk) override;
  void embed_finish(const EmbedCall& call) override;

  void wait(Stream stream) override;

 private:
  /// What lives as long as the backend; calls share it.
  struct Owned {
    PinnedMailbox mailbox;
    DeviceBuffer calls;  ///< how many calls the object has seen
    std::unique_ptr<Gemms> gemms;
  };

  // Where things lie. [slot] buffers of a call's workspace.
  template <class T>
  T* in(std::byte* workspace, Buffer buffer, int slot = 0) const {
    return map_.in<T>(workspace, buffer, slot);
  }
  std::byte* segment(std::byte* workspace, int slot) const {
    return in<std::byte>(workspace, Buffer::exchange, slot) + plan_.rank * map_.exchange_bytes;
  }
  PassScalars* scalars(std::byte* workspace) const {
    return in<PassScalars>(workspace, Buffer::scalars);
  }
  std::uint64_t* calls() const { return owned_->calls.as<std::uint64_t>(); }
  Mailbox* mailbox() const { return owned_->mailbox.device(); }
  bool gathers() const { return gathers_rows(problem_, plan_); }
  /// Whether a chunk's logit gradients are divided by a power of two, which comes back in the
  /// products: float16 needs it, the others reach as far as float32.
  bool scales_gradients() const { return problem_.dtype == DType::float16; }
  int row_blocks() const;
  /// Whether statistics, coefficients and dlogits of the call are one kernel: a forward_backward of
  /// one rank's plain objective in bfloat16, without argmax, correct and bias gradient, where a row
  /// of logits fits into shared memory.
  bool fuses(const Call& call) const;
  bool kept(const Call& call, const Chunk& chunk) const;
  OutputMatrix logits_of(const Call& call, const Chunk& chunk) const;
  OutputMatrix dlogits_of(const Call& call, const Chunk& chunk) const;
  InputMatrix hidden_of(const Call& call, const Chunk& chunk) const;
  void* bias_copy(std::byte* workspace) const;
  RowSelection selection(const Call& call) const;
  OpenArguments scan_arguments(const Call& call) const;

  // Parts of steps.
  AgreeArguments agree_arguments(std::byte* workspace, int slot) const;
  void write_unreached(const Call& call) const;
  void logits_product(const Call& call, const Chunk& chunk) const;
  LogitsArguments logits_arguments(const Call& call, const Chunk& chunk) const;
  CombineArguments combine_arguments(const Call& call, const Chunk& chunk) const;
  void make_dlogits(const Call& call, const Chunk& chunk) const;

  std::set<std::int64_t> other_chunk_rows(const Plan& plan) const;
  int products_multiprocessors() const;
  // Shapes of the products for chunks of `rows` rows, dense and aligned.
  GemmShape shape_of(Product product, std::int64_t rows) const;

  void report_disagreement(bool running);
  void report_invalid_input();

  Problem problem_;
  Plan plan_;
  WorkspaceMap map_;
  Transport& transport_;
  Device device_;
  Objective<float> objective_;
  int multiprocessors_ = 1;
  int row_blocks_ = 0;  ///< of FusedArguments; 0: never
  std::unique_ptr<Owned> owned_;
};

/// The callers' tensors in the kernels' terms.
inline InputVector input_vector(const ConstTensor& t) { return {t.data(), t.dtype(), t.stride(0)}; }
template <class T>
OutputVector<T> output_vector(const Tensor& t) {
  return {static_cast<T*>(t.data()), t.stride(0)};
}
inline InputMatrix input_matrix(const ConstTensor& t) {
  return {t.data(), t.dtype(), row_stride(t)};
}
inline OutputMatrix output_matrix(const Tensor& t) { return {t.data(), t.dtype(), row_stride(t)}; }
template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data());
}
inline const float* reals_of(const ConstTensor& t) { return static_cast<const float*>(t.data()); }

/// A matrix from its row `row` on.
inline InputMatrix from_row(InputMatrix m, std::int64_t row) {
  const auto bytes = row * m.row_stride * static_cast<std::int64_t>(size_of(m.dtype));
  m.data = static_cast<const std::byte*>(m.data) + bytes;
  return m;
}
inline OutputMatrix from_row(OutputMatrix m, std::int64_t row) {
  const auto bytes = row * m.row_stride * static_cast<std::int64_t>(size_of(m.dtype));
  m.data = static_cast<std::byte*>(m.data) + bytes;
  return m;
}
inline InputMatrix as_input(const OutputMatrix& m) { return {m.data, m.dtype, m.row_stride}; }

/// Rows [first, first + rows) of a matrix become 0.
void zero_rows(const Tensor& matrix, std::int64_t first, std::int64_t rows, std::int64_t columns,
               cudaStream_t stream);

inline cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace shardloss::detail::cuda
