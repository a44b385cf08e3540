// The steps of the embedding on a CUDA device.
#include "cuda_backend.hpp"

namespace shardloss::detail::cuda {

void CudaBackend::embed_open(const EmbedCall& call) {
  const ProfileRange range("embed_open");
  const DeviceGuard guard(device_.index);
  const cudaStream_t stream = stream_of(call.stream);
  OpenArguments o;
  o.select.first = call.group_first;
  o.rows = call.rows;
  o.targets = input_vector(call.ids);
  o.objective = objective_;
  o.reduction = Reduction::sum;
  o.whole = !gathers();
  o.header = header_of(call);
  o.exchange[0] = segment(call.workspace, 0);
  o.calls = calls();
  o.mailbox = mailbox();
  o.scalars = scalars(call.workspace);
  o.shares = in<ScanShare>(call.workspace, Buffer::row_scratch);
  open_call(o, stream);
  if (call.operation == Operation::embed_backward && !call.accumulate)
    zero_rows(call.grad_weight, 0, plan_.shard.width, problem_.hidden, stream);
}

void CudaBackend::embed_agree(const EmbedCall& call) {
  const ProfileRange range("agree");
  const DeviceGuard guard(device_.index);
  AgreeArguments a = agree_arguments(call.workspace, 0);
  a.sum_denominators = gathers();
  a.reduction = Reduction::sum;
  agree_call(a, stream_of(call.stream));
}

void CudaBackend::embed_pack(const EmbedCall& call, const Chunk& chunk) {
  const ProfileRange range("embed_pack");
  const DeviceGuard guard(device_.index);
  const cudaStream_t stream = stream_of(call.stream);
  auto* ids = in<std::int64_t>(call.workspace, Buffer::row_inputs, chunk.slot);
  pack_ids(input_vector(call.ids), chunk.own_first, chunk.own_rows, ids + chunk.own_begin, stream);
  if (call.operation != Operation::embed_backward || !gathers()) return;
  const OutputMatrix rows{in<void>(call.workspace, Buffer::hidden_rows, chunk.slot), problem_.dtype,
                          problem_.hidden};
  gather_rows(input_matrix(call.grad_output), {}, chunk.own_first, chunk.own_rows, problem_.hidden,
              from_row(rows, chunk.own_begin), stream);
}

void CudaBackend::embed_lookup(const EmbedCall& call, const Chunk& chunk) {
  const ProfileRange range("look-up");
  const DeviceGuard guard(device_.index);
  look_up(in<std::int64_t>(call.workspace, Buffer::row_inputs, chunk.slot), chunk.rows,
          problem_.hidden, objective_, input_matrix(call.weight),
          in<void>(call.workspace, Buffer::hidden_rows, chunk.slot), stream_of(call.stream));
}

void CudaBackend::embed_store(const EmbedCall& call, const Chunk& chunk) {
  const ProfileRange range("embed_store");
  const DeviceGuard guard(device_.index);
  const InputMatrix rows{in<void>(call.workspace, Buffer::hidden_rows, chunk.slot), problem_.dtype,
                         problem_.hidden};
  gather_rows(from_row(rows, chunk.own_begin), {}, 0, chunk.own_rows, problem_.hidden,
              from_row(output_matrix(call.output), chunk.own_first), stream_of(call.stream));
}

void CudaBackend::embed_scatter(const EmbedCall& call, const Chunk& chunk) {
  const ProfileRange range("scatter");
  const DeviceGuard guard(device_.index);
  const InputMatrix rows =
      gathers() ? InputMatrix{in<void>(call.workspace, Buffer::hidden_rows, chunk.slot),
                              problem_.dtype, problem_.hidden}
                : from_row(input_matrix(call.grad_output), chunk.first);
  scatter_rows(in<std::int64_t>(call.workspace, Buffer::row_inputs, chunk.slot), chunk.rows,
               problem_.hidden, objective_, rows, output_matrix(call.grad_weight),
               in<std::byte>(call.workspace, Buffer::row_scratch), map_.bytes(Buffer::row_scratch),
               stream_of(call.stream));
}

void CudaBackend::embed_finish(const EmbedCall& call) {
  const DeviceGuard guard(device_.index);
  report_finished(scalars(call.workspace), mailbox(), stream_of(call.stream));
}

}  // namespace shardloss::detail::cuda
