/// \file
/// Collectives of CPU ranks over MPI: non-blocking, in place, polled against the clock.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "shardloss/communicator.hpp"

namespace shardloss::detail {

/// Bytes or elements that one MPI call is given at most; MPI counts in int.
inline constexpr std::int64_t largest_piece = std::int64_t{1} << 30;

/// Whether the operation is complete; lets MPI move. Errors come back as `code`.
bool test_request(MPI_Request& request, int& code);

/// One thread at a time calls it; only abort() and failed() are for all.
class MpiTransport final : public Transport {
 public:
  /// Takes `comm` over, and lets it return errors. `piece`: smaller in tests only.
  MpiTransport(MPI_Comm comm, std::chrono::milliseconds deadline,
               std::int64_t piece = largest_piece);
  ~MpiTransport() override;

  bool serves(DeviceKind device) const noexcept override { return device == DeviceKind::cpu; }
  std::string_view kind() const noexcept override { return "mpi"; }

  void exchange_host(const void* mine, void* all, std::size_t bytes) override;
  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override;
  Ticket all_reduce(void* data, std::int64_t count, DType dtype, Stream compute) override;
  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override;
  void wait(Ticket ticket, Stream compute) override;
  void progress() override;

  MPI_Comm comm() const noexcept { return comm_; }

 private:
  // A collective on its way: MPI reads the arrays until it is complete.
  struct Pending {
    std::uint64_t id = 0;
    const char* what = "";
    std::vector<MPI_Request> requests;
    std::vector<int> counts;
    std::vector<int> displacements;
    std::size_t complete = 0;  // of the requests, in order
  };
  struct Sum {
    MPI_Datatype datatype;
    MPI_Op op;
  };

  Pending& begin(const char* what, std::int64_t contributed_bytes);
  Sum sum_of(DType dtype) const;
  void require(int code, const char* call);
  bool test(Pending& pending);

  MPI_Comm comm_;
  std::int64_t piece_;
  MPI_Op sum_bfloat16_ = MPI_OP_NULL;
  MPI_Op sum_float16_ = MPI_OP_NULL;
  std::vector<Pending> pending_;
  std::uint64_t last_id_ = 0;
};

}  // namespace shardloss::detail
