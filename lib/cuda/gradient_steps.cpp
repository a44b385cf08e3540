// The steps of a pass that make gradients on a CUDA device, and its end.
#include "cuda_backend.hpp"

namespace shardloss::detail::cuda {

void CudaBackend::make_dlogits(const Call& call, const Chunk& chunk) const {
  if (fuses(call)) return;  // logits_and_statistics has made them
  const ProfileRange range("dlogits");
  DlogitsArguments d;
  d.on = logits_arguments(call, chunk);
  d.coefficients = in<RowCoefficients<float>>(call.workspace, Buffer::coefficients, chunk.slot);
  d.scale = &scalars(call.workspace)->scale[chunk.slot];
  d.out = dlogits_of(call, chunk);
  d.multiprocessors = multiprocessors_;
  if (call.grad->bias.given()) {
    d.bias = in<float>(call.workspace, Buffer::grad_bias);
    d.first = chunk.index == 0;
    d.scratch = in<float>(call.workspace, Buffer::gemm);  // no product runs meanwhile
    d.scratch_bytes = map_.bytes(Buffer::gemm);
  }
  dlogits(d, stream_of(call.stream));
}

void CudaBackend::grad_hidden(const Call& call, const Chunk& chunk, bool make) {
  const DeviceGuard guard(device_.index);
  if (make) make_dlogits(call, chunk);
  const ProfileRange range("grad_hidden");
  const bool partial = map_.has(Buffer::grad_hidden);
  const OutputMatrix out =
      partial ? OutputMatrix{in<void>(call.workspace, Buffer::grad_hidden, chunk.slot),
                             plan_.grad_hidden_partial_dtype, problem_.hidden}
              : from_row(output_matrix(call.grad->hidden), chunk.first);
  const bool accumulate = !partial && call.grad->accumulate_hidden;
  if (chunk.rows == 0) return;
  if (plan_.shard.vocab == 0) {  // no columns: a sum of nothing
    const Tensor rows(out.data, out.dtype, {chunk.rows, problem_.hidden}, {out.row_stride, 1});
    if (!accumulate) zero_rows(rows, 0, chunk.rows, problem_.hidden, stream_of(call.stream));
    return;
  }
  const InputMatrix weight = input_matrix(call.in->weight);
  GemmShape s = shape_of(Product::grad_hidden, chunk.rows);
  GemmOperands on;
  on.a = weight.data;
  on.b = dlogits_of(call, chunk).data;
  on.d = out.data;
  on.alpha = &scalars(call.workspace)->scale[chunk.slot].alpha;
  on.accumulate = accumulate;
  on.workspace = in<void>(call.workspace, Buffer::gemm);
  s.lda = weight.row_stride;
  s.ldd = out.row_stride;
  s.align_a = alignment_of(on.a);
  s.align_d = alignment_of(on.d);
  owned_->gemms->run(s, on, stream_of(call.stream));
}

void CudaBackend::grad_weight(const Call& call, const Chunk& chunk, bool make) {
  const DeviceGuard guard(device_.index);
  if (make) make_dlogits(call, chunk);
  const ProfileRange range("grad_weight");
  if (!call.grad->weight.given() || chunk.rows == 0 || plan_.shard.vocab == 0) return;
  const bool accumulator = map_.has(Buffer::grad_weight);
  const OutputMatrix out = accumulator ? OutputMatrix{in<void>(call.workspace, Buffer::grad_weight),
                                                      DType::float32, problem_.hidden}
                                       : output_matrix(call.grad->weight);
  const bool add = chunk.index > 0 || (!accumulator && call.grad->accumulate_weight);
  const InputMatrix hidden = hidden_of(call, chunk);
  GemmShape s = shape_of(Product::grad_weight, chunk.rows);
  GemmOperands on;
  on.a = hidden.data;
  on.b = dlogits_of(call, chunk).data;
  on.d = out.data;
  on.alpha = &scalars(call.workspace)->scale[chunk.slot].alpha;
  on.accumulate = add;
  on.workspace = in<void>(call.workspace, Buffer::gemm);
  s.lda = hidden.row_stride;
  s.ldd = out.row_stride;
  s.align_a = alignment_of(on.a);
  s.align_d = alignment_of(on.d);
  owned_->gemms->run(s, on, stream_of(call.stream));
}

void CudaBackend::store_grad_hidden(const Call& call, const Chunk& chunk) {
  const ProfileRange range("store_grad_hidden");
  const DeviceGuard guard(device_.index);
  const InputMatrix partial{in<void>(call.workspace, Buffer::grad_hidden, chunk.slot),
                            plan_.grad_hidden_partial_dtype, problem_.hidden};
  store_rows(from_row(partial, chunk.own_begin), chunk.own_rows, problem_.hidden, selection(call),
             chunk.own_first, output_matrix(call.grad->hidden), call.grad->accumulate_hidden,
             stream_of(call.stream));
}

void CudaBackend::finish(const Call& call) {
  const ProfileRange range("finish");
  const DeviceGuard guard(device_.index);
  const cudaStream_t stream = stream_of(call.stream);
  const Gradients& grad = *call.grad;
  const std::int64_t columns = plan_.shard.vocab;
  if (grad.weight.given() && map_.has(Buffer::grad_weight) && !call.chunks.empty()) {
    store_rows({in<void>(call.workspace, Buffer::grad_weight), DType::float32, problem_.hidden},
               columns, problem_.hidden, {}, 0, output_matrix(grad.weight), grad.accumulate_weight,
               stream);
  }
  if (grad.bias.given() && !call.chunks.empty()) {
    store_rows({in<void>(call.workspace, Buffer::grad_bias), DType::float32, 0}, 1, columns, {}, 0,
               {grad.bias.data(), grad.bias.dtype(), 0}, grad.accumulate_bias, stream);
  }
  if (call.operation != Operation::backward) {
    const Outputs& out = *call.out;
    FinishArguments f;
    f.reduced = problem_.reduction != Reduction::none;
    f.rows = call.hidden_rows;
    f.loss = output_vector<float>(out.loss);
    f.row_loss = output_vector<float>(out.row_loss);
    f.cross_entropy = data_of<float>(out.cross_entropy);
    f.z_loss = data_of<float>(out.z_loss);
    f.counted = data_of<std::int64_t>(out.counted_rows);
    f.scalars = scalars(call.workspace);
    f.mailbox = mailbox();
    finish_call(f, stream);
  }
  report_finished(scalars(call.workspace), mailbox(), stream);
}

}  // namespace shardloss::detail::cuda
