// The steps of a pass on a CUDA device: which kernels and products, on which buffers.
#include "cuda_backend.hpp"

namespace shardloss::detail::cuda {

void zero_rows(const Tensor& matrix, std::int64_t first, std::int64_t rows, std::int64_t columns,
               cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const OutputMatrix from = from_row(output_matrix(matrix), first);
  const std::size_t width = static_cast<std::size_t>(columns) * size_of(matrix.dtype());
  const std::size_t pitch =
      rows == 1 ? width : static_cast<std::size_t>(matrix.stride(0)) * size_of(matrix.dtype());
  SHARDLOSS_CUDA(
      cudaMemset2DAsync(from.data, pitch, 0, width, static_cast<std::size_t>(rows), stream));
}

bool CudaBackend::kept(const Call& call, const Chunk& chunk) const {
  return call.saved != nullptr && chunk.first + chunk.rows <= plan_.kept_rows;
}

bool CudaBackend::fuses(const Call& call) const {
  const bool others =
      call.grad->bias.given() || call.out->argmax.given() || call.out->correct.given();
  return row_blocks_ > 0 && call.operation == Operation::forward_backward && call.gradients() &&
         !others;
}

// The chunk's logits: in Saved where it keeps them, else in the slot.
OutputMatrix CudaBackend::logits_of(const Call& call, const Chunk& chunk) const {
  const std::int64_t ld = logits_ld(plan_.shard.vocab);
  if (!kept(call, chunk))
    return {in<void>(call.workspace, Buffer::logits, chunk.slot), plan_.logits_dtype, ld};
  std::byte* all = call.saved->memory + saved_rows_bytes(problem_);
  return from_row(OutputMatrix{all, plan_.logits_dtype, ld}, chunk.first);
}

// Their gradient, in the slot and in the dtype of the products; rows begin where logits begin.
OutputMatrix CudaBackend::dlogits_of(const Call& call, const Chunk& chunk) const {
  const auto widening =
      static_cast<std::int64_t>(size_of(plan_.logits_dtype) / size_of(problem_.dtype));
  return {in<void>(call.workspace, Buffer::logits, chunk.slot), problem_.dtype,
          logits_ld(plan_.shard.vocab) * widening};
}

InputMatrix CudaBackend::hidden_of(const Call& call, const Chunk& chunk) const {
  if (map_.has(Buffer::hidden_rows))
    return {in<void>(call.workspace, Buffer::hidden_rows, chunk.slot), problem_.dtype,
            problem_.hidden};
  return from_row(input_matrix(call.in->hidden), chunk.first);
}

void* CudaBackend::bias_copy(std::byte* workspace) const {
  return in<std::byte>(workspace, Buffer::row_scratch) + shares_bytes;
}

RowSelection CudaBackend::selection(const Call& call) const {
  return {static_cast<const std::int64_t*>(call.in->row_index.data()), call.hidden_rows,
          call.group_first, !gathers()};
}

// What the scan of the targets needs.
OpenArguments CudaBackend::scan_arguments(const Call& call) const {
  OpenArguments o;
  o.select = selection(call);
  o.rows = call.rows;
  o.targets = input_vector(call.in->targets);
  o.weights = input_vector(call.in->token_weights);
  o.class_weights = reals_of(call.in->class_weights);
  o.objective = objective_;
  o.shares = in<ScanShare>(call.workspace, Buffer::row_scratch);
  return o;
}

void CudaBackend::add_denominator(const Call& call, const Tensor& total) {
  const DeviceGuard guard(device_.index);
  cuda::add_denominator(scan_arguments(call), data_of<float>(total), stream_of(call.stream));
}

void CudaBackend::open(const Call& call) {
  const ProfileRange range("open");
  const DeviceGuard guard(device_.index);
  OpenArguments o = scan_arguments(call);
  o.normalizer = reals_of(call.in->normalizer);
  o.reduction = problem_.reduction;
  o.whole = !gathers();
  o.header = header_of(call);
  for (int slot = 0; slot < plan_.slots; ++slot) o.exchange[slot] = segment(call.workspace, slot);
  o.calls = calls();
  o.mailbox = mailbox();
  o.scalars = scalars(call.workspace);
  open_call(o, stream_of(call.stream));
  if (problem_.bias) {
    convert(call.in->bias.data(), problem_.dtype, bias_copy(call.workspace), plan_.logits_dtype,
            plan_.shard.vocab, stream_of(call.stream));
  }
  write_unreached(call);
}

// What no later step writes: rows that a row index leaves out, padding, gradients of no rows.
void CudaBackend::write_unreached(const Call& call) const {
  const cudaStream_t stream = stream_of(call.stream);
  const Outputs& out = *call.out;
  const Gradients& grad = *call.grad;
  if (call.in->row_index.given()) {
    SkippedRows skipped;
    skipped.rows = call.hidden_rows;
    if (problem_.reduction == Reduction::none) skipped.loss = output_vector<float>(out.loss);
    skipped.row_loss = output_vector<float>(out.row_loss);
    skipped.logprob = output_vector<float>(out.target_logprob);
    skipped.lse = output_vector<float>(out.lse);
    skipped.entropy = output_vector<float>(out.entropy);
    skipped.argmax = output_vector<std::int64_t>(out.argmax);
    skipped.correct = output_vector<std::uint8_t>(out.correct);
    if (call.operation != Operation::backward) fill_skipped_rows(skipped, stream);
    if (grad.hidden.given() && !grad.accumulate_hidden)
      zero_rows(grad.hidden, 0, call.hidden_rows, problem_.hidden, stream);
  }
  const std::int64_t first = call.chunks.empty() ? 0 : plan_.shard.vocab;
  const std::int64_t rows = plan_.shard.width - first;
  if (grad.weight.given() && !grad.accumulate_weight)
    zero_rows(grad.weight, first, rows, problem_.hidden, stream);
  if (grad.bias.given() && !grad.accumulate_bias && rows > 0) {
    const std::size_t each = size_of(grad.bias.dtype());
    SHARDLOSS_CUDA(
        cudaMemsetAsync(data_of<std::byte>(grad.bias) + static_cast<std::size_t>(first) * each, 0,
                        static_cast<std::size_t>(rows) * each, stream));
  }
}

AgreeArguments CudaBackend::agree_arguments(std::byte* workspace, int slot) const {
  AgreeArguments a;
  a.exchange = in<std::byte>(workspace, Buffer::exchange, slot);
  a.segment_bytes = map_.exchange_bytes;
  a.ranks = plan_.ranks;
  a.reduction = problem_.reduction;
  a.mailbox = mailbox();
  a.scalars = scalars(workspace);
  return a;
}

void CudaBackend::agree(const Call& call, int slot, bool sum_denominators) {
  const ProfileRange range("agree");
  const DeviceGuard guard(device_.index);
  AgreeArguments a = agree_arguments(call.workspace, slot);
  a.sum_denominators = sum_denominators;
  a.normalizer = reals_of(call.in->normalizer);
  agree_call(a, stream_of(call.stream));
}

void CudaBackend::give_way(Stream stream) {
  const ProfileRange range("give_way");
  const DeviceGuard guard(device_.index);
  cuda::give_way(stream_of(stream));
}

void CudaBackend::close(std::byte* workspace, Stream stream) {
  const ProfileRange range("close");
  const DeviceGuard guard(device_.index);
  CloseArguments c;
  c.header = segment(workspace, 0);
  c.out = in<std::byte>(workspace, Buffer::exchange) +
          static_cast<std::size_t>(plan_.rank) * sizeof(CallHeader);
  c.mailbox = mailbox();
  close_call(c, stream_of(stream));
}

void CudaBackend::agree_closed(std::byte* workspace, Stream stream) {
  const ProfileRange range("agree_closed");
  const DeviceGuard guard(device_.index);
  AgreeArguments a = agree_arguments(workspace, 0);
  a.segment_bytes = sizeof(CallHeader);
  agree_call(a, stream_of(stream));
}

void CudaBackend::pack_rows(const Call& call, const Chunk& chunk) {
  const ProfileRange range("pack");
  const DeviceGuard guard(device_.index);
  PackArguments p;
  p.select = selection(call);
  p.first = chunk.own_first;
  p.rows = chunk.own_rows;
  p.targets = input_vector(call.in->targets);
  p.weights = input_vector(call.in->token_weights);
  p.loss = input_vector(call.up->loss);
  p.lse = input_vector(call.up->lse);
  p.logprob = input_vector(call.up->target_logprob);
  p.entropy = input_vector(call.up->entropy);
  p.out = in<RowInput<float>>(call.workspace, Buffer::row_inputs, chunk.slot) + chunk.own_begin;
  pack_row_inputs(p, stream_of(call.stream));
  if (!map_.has(Buffer::hidden_rows)) return;
  const OutputMatrix rows{in<void>(call.workspace, Buffer::hidden_rows, chunk.slot), problem_.dtype,
                          problem_.hidden};
  gather_rows(input_matrix(call.in->hidden), p.select, chunk.own_first, chunk.own_rows,
              problem_.hidden, from_row(rows, chunk.own_begin), stream_of(call.stream));
}

void CudaBackend::logits_product(const Call& call, const Chunk& chunk) const {
  if (chunk.rows == 0 || plan_.shard.vocab == 0) return;
  const InputMatrix hidden = hidden_of(call, chunk);
  const InputMatrix weight = input_matrix(call.in->weight);
  GemmShape s = shape_of(Product::logits, chunk.rows);
  GemmOperands on;
  on.a = weight.data;
  on.b = hidden.data;
  on.d = logits_of(call, chunk).data;
  on.bias = problem_.bias ? bias_copy(call.workspace) : nullptr;
  on.workspace = in<void>(call.workspace, Buffer::gemm);
  s.lda = weight.row_stride;
  s.ldb = hidden.row_stride;
  s.align_a = alignment_of(on.a);
  s.align_b = alignment_of(on.b);
  s.align_d = alignment_of(on.d);
  owned_->gemms->run(s, on, stream_of(call.stream));
}

LogitsArguments CudaBackend::logits_arguments(const Call& call, const Chunk& chunk) const {
  LogitsArguments on;
  on.logits = as_input(logits_of(call, chunk));
  on.rows = chunk.rows;
  on.objective = objective_;
  if (problem_.soft_targets) on.soft_targets = input_matrix(call.in->soft_targets);
  // Columns have weights of their own in the loss only under smoothing or soft targets.
  if (problem_.class_weights && (problem_.soft_targets || objective_.smoothing != 0))
    on.class_weights = reals_of(call.in->class_weights) + objective_.first;
  return on;
}

void CudaBackend::logits_and_statistics(const Call& call, const Chunk& chunk) {
  const DeviceGuard guard(device_.index);
  {
    const ProfileRange range("logits");
    logits_product(call, chunk);
  }
  std::byte* own = segment(call.workspace, chunk.slot);
  auto* const statistics = reinterpret_cast<RowStatistics<float>*>(own + sizeof(CallHeader));
  if (fuses(call)) {
    const ProfileRange range("fused_rows");
    return fused_rows(
        {logits_of(call, chunk), statistics, row_blocks_, combine_arguments(call, chunk)},
        stream_of(call.stream));
  }
  const ProfileRange range("statistics");
  StatisticsArguments s;
  s.on = logits_arguments(call, chunk);
  s.sums = problem_.entropy || objective_.smoothing != 0;
  s.argmax = call.out->argmax.given() || call.out->correct.given();
  s.inputs = in<RowInput<float>>(call.workspace, Buffer::row_inputs, chunk.slot);
  s.header = reinterpret_cast<CallHeader*>(own);
  s.chunk = static_cast<std::uint64_t>(chunk.index);
  s.out = statistics;
  s.partials = in<RowStatistics<float>>(call.workspace, Buffer::row_scratch);
  s.multiprocessors = multiprocessors_;
  row_statistics(s, stream_of(call.stream));
}

CombineArguments CudaBackend::combine_arguments(const Call& call, const Chunk& chunk) const {
  CombineArguments c;
  c.exchange = in<std::byte>(call.workspace, Buffer::exchange, chunk.slot);
  c.segment_bytes = map_.exchange_bytes;
  c.ranks = plan_.ranks;
  c.rows = chunk.rows;
  c.inputs = in<RowInput<float>>(call.workspace, Buffer::row_inputs, chunk.slot);
  c.objective = objective_;
  c.class_weights = reals_of(call.in->class_weights);
  c.select = selection(call);
  c.own_begin = chunk.own_begin;
  c.own_rows = chunk.own_rows;
  c.own_first = chunk.own_first;
  if (call.gradients())
    c.coefficients = in<RowCoefficients<float>>(call.workspace, Buffer::coefficients, chunk.slot);
  c.scales_gradients = scales_gradients();
  c.slot = chunk.slot;
  c.chunk = static_cast<std::uint64_t>(chunk.index);
  c.shares = in<CombineShare>(call.workspace, Buffer::row_scratch);
  c.scalars = scalars(call.workspace);
  c.mailbox = mailbox();
  return c;
}

void CudaBackend::combine(const Call& call, const Chunk& chunk) {
  const ProfileRange range("combine");
  const DeviceGuard guard(device_.index);
  CombineArguments c = combine_arguments(call, chunk);
  if (fuses(call)) c.coefficients = nullptr;  // they have been used
  const Outputs& out = *call.out;
  if (problem_.reduction == Reduction::none) c.loss = output_vector<float>(out.loss);
  c.row_loss = output_vector<float>(out.row_loss);
  c.lse = output_vector<float>(out.lse);
  c.logprob = output_vector<float>(out.target_logprob);
  c.entropy = output_vector<float>(out.entropy);
  c.argmax = output_vector<std::int64_t>(out.argmax);
  c.correct = output_vector<std::uint8_t>(out.correct);
  if (call.saved != nullptr)
    c.write = reinterpret_cast<SavedRow<float>*>(call.saved->memory) + chunk.first;
  combine_rows(c, stream_of(call.stream));
}

void CudaBackend::recompute(const Call& call, const Chunk& chunk) {
  const ProfileRange range("recompute");
  const DeviceGuard guard(device_.index);
  if (!kept(call, chunk)) logits_product(call, chunk);
  CombineArguments c = combine_arguments(call, chunk);
  c.read = reinterpret_cast<const SavedRow<float>*>(call.saved->memory) + chunk.first;
  combine_rows(c, stream_of(call.stream));
}

}  // namespace shardloss::detail::cuda
