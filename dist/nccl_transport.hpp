/// \file
/// Collectives of CUDA ranks over NCCL, on a stream of their own.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "nccl_handle.hpp"
#include "shardloss/communicator.hpp"
#include "watchdog.hpp"

namespace shardloss::detail {

/// Collectives only enqueue: `compute` is recorded, the communication stream waits for that, and
/// wait() lets `compute` wait for the collective. All of it can be captured in a CUDA graph.
///
/// Communicators are blocking ones: on non-blocking ones each collective cost 76 us of host time
/// instead of 7 (NCCL 2.28, tests/bench/results). What blocks is left through the watchdog's abort.
class NcclTransport final : public Transport, private Watched {
 public:
  /// `blocks`: of the communicator's collectives, each on a multiprocessor of its own; 0: not
  /// known.
  NcclTransport(std::shared_ptr<NcclHandle> handle, int rank, int size, int blocks,
                std::chrono::milliseconds deadline);
  ~NcclTransport() override;

  bool serves(DeviceKind device) const noexcept override { return device == DeviceKind::cuda; }
  std::string_view kind() const noexcept override { return "nccl"; }
  int multiprocessors() const noexcept override { return blocks_; }

  void exchange_host(const void* mine, void* all, std::size_t bytes) override;
  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override;
  Ticket all_reduce(void* data, std::int64_t count, DType dtype, Stream compute) override;
  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override;
  void wait(Ticket ticket, Stream compute) override;
  void watch(Mailbox* mailbox) override;
  void unwatch(Mailbox* mailbox) override;
  /// Ends what is outstanding as well.
  Error fail(const Error& error) override;

  const std::shared_ptr<NcclHandle>& handle() const noexcept { return handle_; }

 private:
  // Tickets name events in turn. The stream is in order, so an event that a later collective has
  // taken over only makes a late waiter wait for that one.
  static constexpr std::size_t event_count = 64;

  std::chrono::milliseconds patience() const noexcept override { return deadline(); }
  std::optional<Error> asynchronous_error() override;
  void end(const Error& error) override;

  template <class F>
  Ticket collective(const char* what, std::int64_t contributed_bytes, Stream compute, F&& enqueue);
  void exchange_piece(const std::byte* mine, std::byte* all, std::size_t bytes, std::size_t stride);
  void require(ncclResult_t result, const char* call);
  void require(cudaError_t status, const char* call);
  void drain();
  void free_resources() noexcept;

  std::shared_ptr<NcclHandle> handle_;
  int blocks_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  std::array<cudaEvent_t, event_count> done_{};
  std::byte* exchange_device_ = nullptr;
  std::byte* exchange_pinned_ = nullptr;
  std::uint64_t last_id_ = 0;
};

}  // namespace shardloss::detail
