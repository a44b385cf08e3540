/// \file
/// The group of ranks over which the vocabulary is sharded.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "shardloss/error.hpp"
#include "shardloss/export.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss {

/// One collective on its way. Tickets are redeemed with Transport::wait, once, in any order.
struct Ticket {
  std::uint64_t id = 0;  ///< 0: nothing to wait for
};

/// Collectives started so far on this rank, and the payload bytes this rank contributed to them.
struct Traffic {
  std::int64_t calls = 0;  ///< collectives
  std::int64_t bytes = 0;  ///< of this rank's payload
};

/// What a CUDA pass tells the host without being asked, in pinned host memory that both see.
/// Kernels write it, a watchdog reads it, so replays of captured graphs are covered too. All zero:
/// nothing yet.
struct alignas(64) Mailbox {
  std::uint64_t started;       ///< number of the call that began last on the device
  std::uint64_t finished;      ///< number of the call that ended last; equal to started: idle
  std::uint64_t step;          ///< chunk that was combined last in that call
  std::uint32_t disagreement;  ///< 1 + index of the CallHeader field in which ranks differ; 0: none
  std::uint32_t other_rank;    ///< the first rank that differs from rank 0
  std::uint64_t value;         ///< rank 0's value of that field
  std::uint64_t other_value;   ///< other_rank's
  std::uint32_t invalid;       ///< what was seen since the host last cleared it: 0, or one of
  static constexpr std::uint32_t invalid_target = 1;     ///< a target outside the vocabulary
  static constexpr std::uint32_t invalid_row_index = 2;  ///< an entry points outside the rows
  std::uint32_t aborted;       ///< written by the host before an abort: the pass ends in NaN
  std::int64_t invalid_row;    ///< the row in the group's numbering; or the place in the index
  std::int64_t invalid_value;  ///< the target there; or the entry
};

/// The disagreement of ranks that kernels have reported, if any. Fatal where the ranks' collectives
/// no longer match, so that somebody would wait for good; one in targets alone is not, and wait()
/// tells of it. May be called while kernels write.
SHARDLOSS_API std::optional<Error> disagreement_in(Mailbox& mailbox);

/// How ranks talk: one implementation each for a single process, MPI and NCCL, and open to others.
///
/// Collectives are asynchronous, in place, and issued in the same order on all ranks. On the CPU
/// they move only inside calls of this class, so long work calls progress() now and then. On CUDA
/// they run on a stream of the transport: they begin after everything enqueued so far on `compute`,
/// and wait() makes `compute`, not the host, wait.
///
/// The base class keeps what all share: the sticky state, the record of steps, the traffic.
class SHARDLOSS_API Transport {
 public:
  /// Rank `rank` of a group of `size`, ready.
  Transport(int rank, int size, std::chrono::milliseconds deadline);
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Of this process in the group.
  int rank() const noexcept { return rank_; }
  /// P, ranks of the group.
  int size() const noexcept { return size_; }
  /// How long a peer may keep this rank waiting.
  std::chrono::milliseconds deadline() const noexcept { return deadline_; }
  /// Whether buffers on that kind of device can be communicated.
  virtual bool serves(DeviceKind kind) const noexcept = 0;
  /// "self", "mpi", "nccl", for messages.
  virtual std::string_view kind() const noexcept = 0;
  /// CUDA: at most how many multiprocessors a collective takes while it moves; 0: not known.
  virtual int multiprocessors() const noexcept { return 0; }

  /// Blocks: gathers `bytes` host bytes of every rank into all[size * bytes], within the deadline.
  virtual void exchange_host(const void* mine, void* all, std::size_t bytes) = 0;

  /// data holds one segment a rank, bytes[r] long, in rank order; this rank's is filled in.
  /// Afterwards all are, on all ranks.
  virtual Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) = 0;
  /// data[count] becomes the sum over ranks, bitwise the same on all of them. Floating types,
  /// int64.
  virtual Ticket all_reduce(void* data, std::int64_t count, DType dtype, Stream compute) = 0;
  /// data holds one segment a rank, counts[r] elements long, in rank order. Afterwards this rank's
  /// own segment holds the sum over ranks; the others hold anything.
  virtual Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                                Stream compute) = 0;

  /// CPU: returns when the collective is complete; throws Error(timeout) past the deadline,
  /// Error(peer) when the library underneath says so. CUDA: orders `compute` behind it.
  virtual void wait(Ticket ticket, Stream compute) = 0;
  /// CPU: lets outstanding collectives move. Cheap.
  virtual void progress() {}

  /// CUDA: has the watchdog, where there is one, read `mailbox` until unwatch().
  virtual void watch(Mailbox* mailbox) { (void)mailbox; }
  /// Ends that; on return the watchdog no longer reads `mailbox`.
  virtual void unwatch(Mailbox* mailbox) { (void)mailbox; }

  /// Ends everything outstanding with an error. Idempotent, from any thread, bounded.
  virtual void abort();

  /// Throws the first error again once the communicator has failed.
  virtual void check() const;
  /// Whether a fatal error has been recorded.
  virtual bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// Records a fatal error, the first one for good, prints one line about it to stderr, and writes
  /// the last steps to the file named by SHARDLOSS_STEP_LOG (with ".rank<r>" appended) where it is
  /// set. Returns the error that counts, which names the step.
  virtual Error fail(const Error& error);

  /// Notes where the pass is, for the messages and the record of the last 64 steps.
  virtual void note_step(const char* name, std::uint64_t call, std::int64_t chunk) noexcept;

  /// What has been sent so far.
  virtual Traffic traffic() const noexcept;

 protected:
  /// Counts one collective of this rank.
  void count(std::int64_t bytes) noexcept;

 private:
  struct Step {
    const char* name = "";
    std::uint64_t call = 0;
    std::int64_t chunk = 0;
    std::chrono::steady_clock::time_point when;
  };
  static constexpr std::size_t kept_steps = 64;

  std::string last_step() const;
  void report(const Error& error) const;

  int rank_;
  int size_;
  std::chrono::milliseconds deadline_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards first_error_, steps_, noted_
  std::optional<Error> first_error_;
  std::array<Step, kept_steps> steps_{};
  std::uint64_t noted_ = 0;
  std::atomic<std::int64_t> calls_{0};
  std::atomic<std::int64_t> bytes_{0};
};

/// A cheap handle of a group; copies name the same group. Made by self(), and by the functions of
/// mpi.hpp and nccl.hpp.
class SHARDLOSS_API Communicator {
 public:
  /// Shares `transport`, which is never null.
  explicit Communicator(std::shared_ptr<Transport> transport) : transport_(std::move(transport)) {}

  /// Of this process in the group.
  int rank() const noexcept { return transport_->rank(); }
  /// P, ranks of the group.
  int size() const noexcept { return transport_->size(); }
  /// How long a peer may keep this rank waiting.
  std::chrono::milliseconds deadline() const noexcept { return transport_->deadline(); }
  /// Whether a fatal error has ended it.
  bool failed() const noexcept { return transport_->failed(); }
  /// What this rank has sent so far.
  Traffic traffic() const noexcept { return transport_->traffic(); }
  /// Ends everything outstanding on this rank with an error; every later call throws it.
  /// Idempotent, callable from any thread, bounded in time.
  void abort() const { transport_->abort(); }

  /// For those who communicate: the library itself, and transports that wrap another.
  Transport& transport() const noexcept { return *transport_; }

 private:
  std::shared_ptr<Transport> transport_;
};

/// The default deadline of communicators. There is no way to have none.
inline constexpr std::chrono::milliseconds default_deadline = std::chrono::minutes(10);
/// The longest that is accepted.
inline constexpr std::chrono::milliseconds longest_deadline = std::chrono::hours(24 * 7);

/// A group of one. Needs neither MPI nor NCCL; serves CPU and CUDA.
SHARDLOSS_API Communicator self();

/// values = the sum over the group of its ranks' values, the same bits on all of them. A scalar or
/// a contiguous vector of floats, doubles or int64, alike on all ranks. Collective; on CUDA ordered
/// on the stream. Throws Error(invalid_argument); on the CPU Error(mismatch) on every rank where
/// dtypes or sizes differ.
SHARDLOSS_API void sum_over(const Communicator& group, const Tensor& values, Stream stream = {});

}  // namespace shardloss
