#include "mpi_transport.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "poll.hpp"
#include "sum16.hpp"

namespace shardloss::detail {
namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of_group(MPI_Comm comm) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  return size;
}

void sum_bfloat16(void* in, void* sum, int* count, MPI_Datatype*) {
  add_bfloat16(static_cast<const std::uint16_t*>(in), static_cast<std::uint16_t*>(sum),
               static_cast<std::size_t>(*count));
}

void sum_float16(void* in, void* sum, int* count, MPI_Datatype*) {
  add_float16(static_cast<const std::uint16_t*>(in), static_cast<std::uint16_t*>(sum),
              static_cast<std::size_t>(*count));
}

std::int64_t total(std::span<const std::int64_t> parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

// Open MPI hands errors of non-blocking collectives to the handler of MPI_COMM_WORLD, whatever the
// communicator, and by default that one ends the job. So for the moment in which a request that is
// over gives its result, the program's handler makes way.
class WorldReturnsErrors {
 public:
  WorldReturnsErrors() {
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~WorldReturnsErrors() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
    MPI_Errhandler_free(&before_);
  }
  WorldReturnsErrors(const WorldReturnsErrors&) = delete;
  WorldReturnsErrors& operator=(const WorldReturnsErrors&) = delete;

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

// Cuts [0, count) into pieces that an int can count.
template <class F>
void in_pieces(std::int64_t count, std::int64_t piece, F&& f) {
  for (std::int64_t at = 0; at < count; at += piece) {
    f(at, static_cast<int>(std::min(piece, count - at)));
  }
}

}  // namespace

bool test_request(MPI_Request& request, int& code) {
  int done = 0;
  code = MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS || done == 0) return false;
  const WorldReturnsErrors guard;
  code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS;
}

MpiTransport::MpiTransport(MPI_Comm comm, std::chrono::milliseconds deadline, std::int64_t piece)
    : Transport(rank_in(comm), size_of_group(comm), deadline), comm_(comm), piece_(piece) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Op_create(&sum_bfloat16, 1, &sum_bfloat16_);
  MPI_Op_create(&sum_float16, 1, &sum_float16_);
}

// An operation that was given up or never waited for may still use the communicator: it stays.
MpiTransport::~MpiTransport() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (failed() || !pending_.empty() || finalized != 0) return;
  MPI_Op_free(&sum_bfloat16_);
  MPI_Op_free(&sum_float16_);
  MPI_Comm_free(&comm_);
}

void MpiTransport::require(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw fail(Error(ErrorCode::peer, std::string(call) + " says: " + text, true));
}

MpiTransport::Pending& MpiTransport::begin(const char* what, std::int64_t contributed_bytes) {
  count(contributed_bytes);
  Pending& pending = pending_.emplace_back();
  pending.id = ++last_id_;
  pending.what = what;
  return pending;
}

MpiTransport::Sum MpiTransport::sum_of(DType dtype) const {
  switch (dtype) {
    case DType::float64: return {MPI_DOUBLE, MPI_SUM};
    case DType::float32: return {MPI_FLOAT, MPI_SUM};
    case DType::int64: return {MPI_INT64_T, MPI_SUM};
    case DType::bfloat16: return {MPI_UINT16_T, sum_bfloat16_};
    case DType::float16: return {MPI_UINT16_T, sum_float16_};
    default: break;
  }
  throw Error(ErrorCode::invalid_argument, "no sum of " + std::string(name(dtype)) + " elements");
}

// MPI may write into the buffers of an exchange that was given up, so they are ours and are then
// left to it.
void MpiTransport::exchange_host(const void* mine, void* all, std::size_t bytes) {
  check();
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw Error(ErrorCode::invalid_argument, "exchange of " + std::to_string(bytes) + " bytes");
  }
  const auto ranks = static_cast<std::size_t>(size());
  auto buffer = std::make_unique<std::vector<char>>((ranks + 1) * bytes);
  char* const send = buffer->data() + ranks * bytes;
  std::memcpy(send, mine, bytes);
  try {
    MPI_Request request = MPI_REQUEST_NULL;
    const int n = static_cast<int>(bytes);
    require(MPI_Iallgather(send, n, MPI_BYTE, buffer->data(), n, MPI_BYTE, comm_, &request),
            "MPI_Iallgather");
    poll(*this, "all ranks to exchange their settings", [&] {
      int code = MPI_SUCCESS;
      const bool done = test_request(request, code);
      require(code, "MPI_Iallgather");
      return done;
    });
  } catch (const Error&) {
    (void)buffer.release();
    throw;
  }
  std::memcpy(all, buffer->data(), ranks * bytes);
}

Ticket MpiTransport::all_gather(void* data, std::span<const std::int64_t> bytes, Stream) {
  check();
  const std::int64_t whole = total(bytes);
  if (size() == 1 || whole == 0) return {};
  Pending& pending = begin("all_gather", bytes[static_cast<std::size_t>(rank())]);
  if (whole <= piece_) {
    int at = 0;
    for (const std::int64_t part : bytes) {
      pending.counts.push_back(static_cast<int>(part));
      pending.displacements.push_back(at);
      at += static_cast<int>(part);
    }
    require(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, pending.counts.data(),
                            pending.displacements.data(), MPI_BYTE, comm_,
                            &pending.requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Iallgatherv");
    return {pending.id};
  }
  auto* segment = static_cast<char*>(data);
  for (int root = 0; root < size(); ++root) {
    const std::int64_t length = bytes[static_cast<std::size_t>(root)];
    in_pieces(length, piece_, [&](std::int64_t at, int n) {
      require(MPI_Ibcast(segment + at, n, MPI_BYTE, root, comm_,
                         &pending.requests.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Ibcast");
    });
    segment += length;
  }
  return {pending.id};
}

// In Open MPI and MPICH each element is summed in one place and sent around, or by partners that
// exchange operands of a commutative sum: equal bits on all ranks, which the tests check.
Ticket MpiTransport::all_reduce(void* data, std::int64_t count, DType dtype, Stream) {
  check();
  const Sum sum = sum_of(dtype);
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  if (size() == 1 || count == 0) return {};
  Pending& pending = begin("all_reduce", count * width);
  in_pieces(count, piece_, [&](std::int64_t at, int n) {
    require(MPI_Iallreduce(MPI_IN_PLACE, static_cast<char*>(data) + at * width, n, sum.datatype,
                           sum.op, comm_, &pending.requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Iallreduce");
  });
  return {pending.id};
}

// One reduction a segment: MPI_Ireduce_scatter in place would leave the sum at the start of the
// buffer, and its segments cannot pass an int together.
Ticket MpiTransport::reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                                    Stream) {
  check();
  const Sum sum = sum_of(dtype);
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t whole = total(counts);
  if (size() == 1 || whole == 0) return {};
  Pending& pending = begin("reduce_scatter", whole * width);
  auto* segment = static_cast<char*>(data);
  for (int root = 0; root < size(); ++root) {
    const std::int64_t length = counts[static_cast<std::size_t>(root)];
    in_pieces(length, piece_, [&](std::int64_t at, int n) {
      char* const part = segment + at * width;
      const bool own = root == rank();
      require(MPI_Ireduce(own ? MPI_IN_PLACE : part, own ? part : nullptr, n, sum.datatype, sum.op,
                          root, comm_, &pending.requests.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Ireduce");
    });
    segment += length * width;
  }
  return {pending.id};
}

bool MpiTransport::test(Pending& pending) {
  while (pending.complete < pending.requests.size()) {
    int code = MPI_SUCCESS;
    const bool done = test_request(pending.requests[pending.complete], code);
    require(code, pending.what);
    if (!done) return false;
    ++pending.complete;
  }
  return true;
}

void MpiTransport::wait(Ticket ticket, Stream) {
  check();
  if (ticket.id == 0) return;
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const Pending& p) { return p.id == ticket.id; });
  if (found == pending_.end()) {
    throw Error(ErrorCode::internal, "ticket " + std::to_string(ticket.id) + " is not outstanding");
  }
  poll(*this, found->what, [&] { return test(*found); });
  pending_.erase(found);
}

// Any test of an incomplete request lets MPI move all of them. An error is left for wait().
void MpiTransport::progress() {
  if (failed()) return;
  try {
    for (Pending& pending : pending_) {
      if (!test(pending)) return;
    }
  } catch (const Error&) {
    return;
  }
}

}  // namespace shardloss::detail
