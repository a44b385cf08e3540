#include "nccl_transport.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

#include "cuda_check.hpp"
#include "poll.hpp"

namespace shardloss::detail {
namespace {

// Of a host exchange, per rank: larger ones go in pieces, so that none has to allocate.
constexpr std::size_t exchange_bytes = 4096;
// NCCL's destroy is local, and waits for good where a captured graph still holds operations.
constexpr std::chrono::milliseconds destroy_bound = std::chrono::seconds(10);
// A failed communicator's abort usually takes milliseconds; a process that ends should not cut it.
constexpr std::chrono::milliseconds abort_bound = std::chrono::seconds(2);

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::float64: return ncclFloat64;
    case DType::float32: return ncclFloat32;
    case DType::bfloat16: return ncclBfloat16;
    case DType::float16: return ncclFloat16;
    case DType::int64: return ncclInt64;
    default: break;
  }
  throw Error(ErrorCode::invalid_argument, "no sum of " + std::string(name(dtype)) + " elements");
}

bool all_equal(std::span<const std::int64_t> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](std::int64_t part) { return part == parts.front(); });
}

std::int64_t total(std::span<const std::int64_t> parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

// each(rank, first, length) for every segment that is not empty, as one NCCL group.
template <class F>
ncclResult_t grouped(std::span<const std::int64_t> parts, F&& each) {
  ncclResult_t result = ncclGroupStart();
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (result == ncclSuccess && parts[rank] > 0) {
      result = each(static_cast<int>(rank), first, static_cast<std::size_t>(parts[rank]));
    }
    first += parts[rank];
  }
  const ncclResult_t end = ncclGroupEnd();
  return result != ncclSuccess ? result : end;
}

}  // namespace

NcclTransport::NcclTransport(std::shared_ptr<NcclHandle> handle, int rank, int size, int blocks,
                             std::chrono::milliseconds deadline)
    : Transport(rank, size, deadline), handle_(std::move(handle)), blocks_(blocks) {
  const DeviceGuard guard(handle_->device());
  try {
    int lowest = 0;
    int highest = 0;
    SHARDLOSS_DIST_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    SHARDLOSS_DIST_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
    SHARDLOSS_DIST_CUDA(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
    for (cudaEvent_t& event : done_) {
      SHARDLOSS_DIST_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    const std::size_t bytes = exchange_bytes * static_cast<std::size_t>(size);
    SHARDLOSS_DIST_CUDA(cudaMalloc(reinterpret_cast<void**>(&exchange_device_), bytes));
    SHARDLOSS_DIST_CUDA(cudaMallocHost(reinterpret_cast<void**>(&exchange_pinned_), bytes));
  } catch (const Error&) {
    free_resources();
    throw;
  }
  Watchdog::of_process().add(*this);
}

// After a failure nothing is freed that a stuck operation may still touch.
NcclTransport::~NcclTransport() {
  int before = 0;
  const bool restore = cudaGetDevice(&before) == cudaSuccess;
  (void)cudaSetDevice(handle_->device());
  drain();
  Watchdog::of_process().remove(*this);
  if (failed()) {
    (void)handle_->wait_ended(abort_bound);
  } else if (handle_->destroy(std::min(deadline(), destroy_bound))) {
    free_resources();
  } else {
    std::fprintf(stderr,
                 "shardloss: rank %d: NCCL's destroy has not returned, as it does while a captured "
                 "graph holds operations of the communicator: it is left to itself\n",
                 rank());
  }
  if (restore) (void)cudaSetDevice(before);
}

// A destroy under running operations is undefined: waits for them, within the deadline.
void NcclTransport::drain() {
  Patience patience;
  while (!failed() && cudaStreamQuery(stream_) == cudaErrorNotReady) {
    if (patience.waited() > deadline()) {
      fail(Error(ErrorCode::timeout,
                 waited_for("outstanding collectives at the end of the communicator",
                            patience.waited(), deadline()),
                 true));
      return;
    }
    patience.pause();
  }
}

void NcclTransport::free_resources() noexcept {
  if (exchange_pinned_ != nullptr) (void)cudaFreeHost(exchange_pinned_);
  if (exchange_device_ != nullptr) (void)cudaFree(exchange_device_);
  for (const cudaEvent_t event : done_) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  if (ready_ != nullptr) (void)cudaEventDestroy(ready_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

// Watched, called by the watchdog.

std::optional<Error> NcclTransport::asynchronous_error() {
  const auto inside = handle_->inside();
  if (inside > deadline()) {
    return Error(ErrorCode::timeout, waited_for("a call into NCCL to return", inside, deadline()),
                 true);
  }
  const ncclResult_t result = handle_->asynchronous_error();
  if (result == ncclSuccess) return std::nullopt;
  return nccl_error(result, "NCCL reports");
}

void NcclTransport::end(const Error& error) {
  Transport::fail(error);
  handle_->abort();
}

void NcclTransport::watch(Mailbox* mailbox) { Watchdog::of_process().watch(*this, *mailbox); }

void NcclTransport::unwatch(Mailbox* mailbox) { Watchdog::of_process().unwatch(*this, *mailbox); }

// The watchdog calls end(), after it has told the mailboxes.
Error NcclTransport::fail(const Error& error) {
  Watchdog::of_process().end(*this, error);
  return Transport::fail(error);
}

// Where the watchdog was first, its error is the one that counts.

void NcclTransport::require(ncclResult_t result, const char* call) {
  if (result != ncclSuccess) throw fail(nccl_error(result, call));
}

void NcclTransport::require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw fail(
      Error(ErrorCode::device,
            std::string(call) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status),
            true));
}

// Collectives.

template <class F>
Ticket NcclTransport::collective(const char* what, std::int64_t contributed_bytes, Stream compute,
                                 F&& enqueue) {
  count(contributed_bytes);
  require(cudaEventRecord(ready_, cuda_stream(compute)), "cudaEventRecord");
  require(cudaStreamWaitEvent(stream_, ready_, 0), "cudaStreamWaitEvent");
  require(handle_->enqueue(enqueue), what);
  ++last_id_;
  require(cudaEventRecord(done_[last_id_ % event_count], stream_), "cudaEventRecord");
  return {last_id_};
}

void NcclTransport::wait(Ticket ticket, Stream compute) {
  check();
  if (ticket.id == 0) return;
  if (ticket.id > last_id_) {
    throw Error(ErrorCode::internal, "ticket " + std::to_string(ticket.id) + " was never issued");
  }
  require(cudaStreamWaitEvent(cuda_stream(compute), done_[ticket.id % event_count], 0),
          "cudaStreamWaitEvent");
}

Ticket NcclTransport::all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) {
  check();
  if (size() == 1 || total(bytes) == 0) return {};
  const auto own = static_cast<std::size_t>(rank());
  auto* const base = static_cast<std::byte*>(data);
  return collective("all_gather", bytes[own], compute, [&](ncclComm_t comm) {
    if (all_equal(bytes)) {
      const auto part = static_cast<std::size_t>(bytes.front());
      return ncclAllGather(base + own * part, base, part, ncclUint8, comm, stream_);
    }
    return grouped(bytes, [&](int root, std::int64_t first, std::size_t length) {
      return ncclBroadcast(base + first, base + first, length, ncclUint8, root, comm, stream_);
    });
  });
}

Ticket NcclTransport::all_reduce(void* data, std::int64_t count, DType dtype, Stream compute) {
  check();
  const ncclDataType_t type = nccl_type(dtype);
  if (size() == 1 || count == 0) return {};
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  return collective("all_reduce", bytes, compute, [&](ncclComm_t comm) {
    return ncclAllReduce(data, data, static_cast<std::size_t>(count), type, ncclSum, comm, stream_);
  });
}

Ticket NcclTransport::reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                                     Stream compute) {
  check();
  const ncclDataType_t type = nccl_type(dtype);
  const std::int64_t whole = total(counts);
  if (size() == 1 || whole == 0) return {};
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  auto* const base = static_cast<std::byte*>(data);
  return collective("reduce_scatter", whole * width, compute, [&](ncclComm_t comm) {
    if (all_equal(counts)) {
      std::byte* const own = base + rank() * counts.front() * width;
      return ncclReduceScatter(base, own, static_cast<std::size_t>(counts.front()), type, ncclSum,
                               comm, stream_);
    }
    return grouped(counts, [&](int root, std::int64_t first, std::size_t length) {
      std::byte* const part = base + first * width;
      return ncclReduce(part, part, length, type, ncclSum, root, comm, stream_);
    });
  });
}

void NcclTransport::exchange_host(const void* mine, void* all, std::size_t bytes) {
  check();
  for (std::size_t at = 0; at < bytes; at += exchange_bytes) {
    const std::size_t part = std::min(exchange_bytes, bytes - at);
    exchange_piece(static_cast<const std::byte*>(mine) + at, static_cast<std::byte*>(all) + at,
                   part, bytes);
  }
}

// `stride`: bytes between two ranks' parts in `all`.
void NcclTransport::exchange_piece(const std::byte* mine, std::byte* all, std::size_t bytes,
                                   std::size_t stride) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
  std::memcpy(exchange_pinned_ + own, mine, bytes);
  require(cudaMemcpyAsync(exchange_device_ + own, exchange_pinned_ + own, bytes,
                          cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
  require(handle_->enqueue([&](ncclComm_t comm) {
    return ncclAllGather(exchange_device_ + own, exchange_device_, bytes, ncclUint8, comm, stream_);
  }),
          "ncclAllGather");
  require(cudaMemcpyAsync(exchange_pinned_, exchange_device_, ranks * bytes, cudaMemcpyDeviceToHost,
                          stream_),
          "cudaMemcpyAsync");
  require(cudaEventRecord(ready_, stream_), "cudaEventRecord");
  poll(*this, "all ranks to exchange their settings", [&] {
    const cudaError_t status = cudaEventQuery(ready_);
    if (status != cudaErrorNotReady) require(status, "cudaEventQuery");
    return status == cudaSuccess;
  });
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::memcpy(all + rank * stride, exchange_pinned_ + rank * bytes, bytes);
  }
}

}  // namespace shardloss::detail
