// VocabParallelEmbedding: calls from their arguments to the look-up and the scatter.
#include "shardloss/embedding.hpp"

#include "instance.hpp"
#include "pass.hpp"
#include "validate.hpp"

namespace shardloss {

struct VocabParallelEmbedding::Impl : detail::Instance {
  Impl(const Problem& p, const Communicator& c, Device d)
      : Instance("VocabParallelEmbedding", p, c, d, {detail::map_embedding, false, true}) {}

  void run(detail::EmbedCall& call, std::span<const std::int64_t> rows_per_rank) {
    call.workspace = workspace;
    call.object = object;
    admit(call.number,
          [&] { detail::validate_embed_call(problem, plan, device, rows_per_rank, call); });
    detail::run_embedding(call, plan, map, *backend, communicator.transport());
  }
};

VocabParallelEmbedding::VocabParallelEmbedding(const Problem& problem,
                                               const Communicator& communicator, Device device)
    : impl_(std::make_unique<Impl>(problem, communicator, device)) {}

VocabParallelEmbedding::~VocabParallelEmbedding() = default;
VocabParallelEmbedding::VocabParallelEmbedding(VocabParallelEmbedding&&) noexcept = default;
VocabParallelEmbedding& VocabParallelEmbedding::operator=(VocabParallelEmbedding&&) noexcept =
    default;

std::size_t VocabParallelEmbedding::workspace_bytes() const noexcept { return impl_->map.total(); }

void VocabParallelEmbedding::forward(const ConstTensor& ids, const ConstTensor& weight,
                                     const Tensor& output,
                                     std::span<const std::int64_t> rows_per_rank,
                                     Stream stream) const {
  detail::EmbedCall call;
  call.operation = detail::Operation::embed;
  call.ids = ids;
  call.weight = weight;
  call.output = output;
  call.stream = stream;
  impl_->run(call, rows_per_rank);
}

void VocabParallelEmbedding::backward(const ConstTensor& ids, const ConstTensor& grad_output,
                                      const Tensor& grad_weight, bool accumulate,
                                      std::span<const std::int64_t> rows_per_rank,
                                      Stream stream) const {
  detail::EmbedCall call;
  call.operation = detail::Operation::embed_backward;
  call.ids = ids;
  call.grad_output = grad_output;
  call.grad_weight = grad_weight;
  call.accumulate = accumulate;
  call.stream = stream;
  impl_->run(call, rows_per_rank);
}

void VocabParallelEmbedding::wait(Stream stream) const { impl_->backend->wait(stream); }

}  // namespace shardloss
