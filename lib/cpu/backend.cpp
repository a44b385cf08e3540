// The CPU backend: its steps are free functions (steps.hpp); this class binds them to the problem,
// and keeps the one thing that outlives a call, an invalid target that nobody was told of yet.
// CPU calls are complete when they return.
#include "../backend.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include "headers.hpp"
#include "row_steps.hpp"
#include "steps.hpp"

namespace shardloss::detail {
namespace cpu {
namespace {

constexpr std::size_t alignment = 256;

void release(std::byte* memory) { std::free(memory); }

template <class Real>
class CpuBackend final : public Backend {
 public:
  CpuBackend(const Problem& problem, const Plan& plan, const WorkspaceMap& map,
             Transport& transport)
      : context_{problem, plan, map, transport, make_objective<Real>(problem, plan.shard)} {}

  std::byte* allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes / alignment + 1) * alignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
    if (memory != nullptr) return memory;
    throw Error(ErrorCode::out_of_memory, std::to_string(rounded) + " bytes of host memory");
  }
  void (*releaser() const noexcept)(std::byte*) override { return release; }
  void check_memory(const void* memory, const char* name) const override {
    if (memory != nullptr) return;
    throw Error(ErrorCode::invalid_argument, std::string(name) + ": null");
  }
  void choose_gemms(Plan& plan) override {
    for (PlannedGemm& gemm : plan.gemms) gemm.algorithm = products_name();
  }

  void open(const Call& call) override { opened(cpu::open(context_, call)); }
  void agree(const Call& call, int slot, bool sum_denominators) override {
    const std::vector<CallHeader> headers = agreed(call.workspace, slot);
    if (!sum_denominators) return;
    double& denominator = context_.scalars(call).denominator;
    denominator = 0;
    for (const CallHeader& header : headers) denominator += header.denominator;
  }
  void pack_rows(const Call& call, const Chunk& chunk) override {
    cpu::pack_rows(context_, call, chunk);
  }
  void logits_and_statistics(const Call& call, const Chunk& chunk) override {
    cpu::logits_and_statistics(context_, call, chunk);
  }
  void combine(const Call& call, const Chunk& chunk) override {
    cpu::combine(context_, call, chunk);
  }
  void recompute(const Call& call, const Chunk& chunk) override {
    cpu::recompute_logits(context_, call, chunk);
    cpu::recompute_coefficients(context_, call, chunk);
  }
  void grad_hidden(const Call& call, const Chunk& chunk, bool make_dlogits) override {
    cpu::grad_hidden(context_, call, chunk, make_dlogits);
  }
  void grad_weight(const Call& call, const Chunk& chunk, bool make_dlogits) override {
    cpu::grad_weight(context_, call, chunk, make_dlogits);
  }
  void store_grad_hidden(const Call& call, const Chunk& chunk) override {
    cpu::store_grad_hidden(context_, call, chunk);
  }
  void finish(const Call& call) override { cpu::finish(context_, call); }
  void add_denominator(const Call& call, const Tensor& total) override {
    cpu::add_denominator(context_, call, total);
  }

  void embed_open(const EmbedCall& call) override { opened(cpu::embed_open(context_, call)); }
  void embed_agree(const EmbedCall& call) override { agreed(call.workspace, 0); }
  void embed_pack(const EmbedCall& call, const Chunk& chunk) override {
    cpu::embed_pack(context_, call, chunk);
  }
  void embed_lookup(const EmbedCall& call, const Chunk& chunk) override {
    cpu::embed_lookup(context_, call, chunk);
  }
  void embed_store(const EmbedCall& call, const Chunk& chunk) override {
    cpu::embed_store(context_, call, chunk);
  }
  void embed_scatter(const EmbedCall& call, const Chunk& chunk) override {
    cpu::embed_scatter(context_, call, chunk);
  }

  void wait(Stream /*stream*/) override {
    context_.transport.check();
    if (!invalid_target_) return;
    const Error error = *invalid_target_;
    invalid_target_.reset();
    throw error;
  }

 private:
  // A group of one has no exchange that would tell it of its own invalid targets.
  void opened(const CallHeader& header) {
    if (context_.plan.ranks == 1) note_invalid(std::array{header});
  }

  std::vector<CallHeader> agreed(std::byte* workspace, int slot) {
    std::vector<CallHeader> headers =
        agreed_headers(context_.plan, context_.map, context_.transport, workspace, slot);
    note_invalid(headers);
    return headers;
  }

  void note_invalid(std::span<const CallHeader> headers) {
    if (!context_.problem.throw_invalid_target || invalid_target_) return;
    invalid_target_ = invalid_target(headers, context_.problem.vocab);
  }

  const Context<Real> context_;
  std::optional<Error> invalid_target_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(const Problem& problem, const Plan& plan,
                                          const WorkspaceMap& map, Transport& transport) {
  if (problem.dtype == DType::float64) {
    return std::make_unique<cpu::CpuBackend<double>>(problem, plan, map, transport);
  }
  return std::make_unique<cpu::CpuBackend<float>>(problem, plan, map, transport);
}

}  // namespace shardloss::detail
