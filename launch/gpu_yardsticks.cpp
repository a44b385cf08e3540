#include "gpu_yardsticks.hpp"

#include <algorithm>

#include "convert.hpp"

namespace shardloss::launch {
namespace {

/// Targets moved into this shard where they belong to another: every row then has the same work.
HostArray own_targets(const Share& share) {
  std::vector<std::int64_t> targets = share.targets.integers();
  for (std::int64_t& y : targets) {
    const bool ordinary = y >= 0 && y < share.problem.vocab && y != share.problem.ignore_index;
    if (ordinary) y %= share.shard.vocab;
  }
  HostArray out(DType::int64, {share.targets.rows()});
  convert(targets.data(), DType::int64, out.mutable_data(), DType::int64, out.elements());
  return out;
}

}  // namespace

Copy::Copy() : from_(bytes), to_(bytes) {
  check_cuda(cudaMemset(from_.data(), 1, bytes), "cudaMemset");
}

void Copy::run(cudaStream_t stream) const {
  check_cuda(cudaMemcpyAsync(to_.data(), from_.data(), bytes, cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync");
}

Rendezvous::Rendezvous(const Communicator& group)
    : group_(group),
      bytes_(static_cast<std::size_t>(group.size()), 16),
      memory_(16 * bytes_.size()) {
  check_cuda(cudaMemset(memory_.data(), 0, memory_.bytes()), "cudaMemset");
}

void Rendezvous::run(cudaStream_t stream) const {
  Transport& transport = group_.transport();
  transport.wait(transport.all_gather(memory_.data(), bytes_, {stream}), {stream});
}

CollectivesAlone::CollectivesAlone(const Communicator& group, const Plan& plan) : group_(group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::size_t largest = 1;
  for (const PlannedCollective& one : plan.collectives) {
    if (one.way != "forward_backward" || one.calls == 0) continue;
    const std::int64_t bytes = one.bytes / one.calls;
    const DType dtype = one.name == "grad_hidden" ? plan.grad_hidden_partial_dtype : DType::float32;
    const std::int64_t elements = bytes / static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t part = one.kind == "reduce_scatter" ? elements / group.size() : bytes;
    kinds_.push_back(
        {one.kind, one.calls, dtype, elements, std::vector<std::int64_t>(ranks, part)});
    largest =
        std::max(largest, static_cast<std::size_t>(bytes) * (one.kind == "all_gather" ? ranks : 1));
  }
  memory_ = DeviceMemory(largest);
  check_cuda(cudaMemset(memory_.data(), 0, largest), "cudaMemset");
}

void CollectivesAlone::run_once(const Kind& kind, cudaStream_t stream) const {
  Transport& transport = group_.transport();
  const Stream compute{stream};
  Ticket ticket;
  if (kind.kind == "all_gather")
    ticket = transport.all_gather(memory_.data(), kind.parts, compute);
  else if (kind.kind == "all_reduce")
    ticket = transport.all_reduce(memory_.data(), kind.elements, kind.dtype, compute);
  else
    ticket = transport.reduce_scatter(memory_.data(), kind.parts, kind.dtype, compute);
  transport.wait(ticket, compute);
}

void CollectivesAlone::run(cudaStream_t stream) const {
  for (const Kind& kind : kinds_)
    for (std::int64_t i = 0; i < kind.calls; ++i) run_once(kind, stream);
}

Solo::Solo(const Share& share, const Plan& plan, const Options& options, Device device)
    : share_(share) {
  Problem& problem = share_.problem;
  if (share.targets.given()) share_.targets = own_targets(share);
  problem.layout = Layout::replicated;
  problem.vocab = share.shard.vocab;
  problem.vocab_padded = share.shard.width;
  problem.shard_widths.clear();
  problem.max_rows = share.rows;
  problem.chunking = {Chunking::Rule::rows, plan.chunk_rows};
  share_.shard = {0, share.shard.width, share.shard.vocab};
  share_.rank = 0;
  share_.first_row = 0;
  share_.rows_per_rank.clear();
  loss_ = std::make_unique<Loss>(problem, self(), device);
  job_ = std::make_unique<Job>(*loss_, share_, options.way, options.outputs);
  (void)job_->run();
}

}  // namespace shardloss::launch
