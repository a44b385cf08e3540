/// \file
/// Groups over MPI, for CPU ranks.
#pragma once

#include <mpi.h>

#include <chrono>

#include "shardloss/communicator.hpp"
#include "shardloss/export.hpp"

namespace shardloss {

/// A group of the processes of `comm`, which is duplicated: the library's messages never meet the
/// caller's. Collective over `comm`. The program has called MPI_Init (MPI_THREAD_SINGLE is enough
/// when one thread uses the library) and calls MPI_Finalize after the last copy of the handle is
/// gone. Throws Error(timeout) when a process does not arrive within the deadline.
///
/// MPI cannot take back an operation that waits for a lost peer: after a fatal error the program
/// ends through MPI_Abort, and buffers that MPI may still write are leaked on purpose.
SHARDLOSS_API Communicator from_mpi(MPI_Comm comm,
                                    std::chrono::milliseconds deadline = default_deadline);

/// How the ranks of a job become tensor-parallel groups: neighbours {0, 1}, {2, 3}, or with stride
/// {0, 2}, {1, 3}.
enum class GridOrder { contiguous, strided };

/// A job of T x D ranks: T share one sharded head, D hold copies of it on other data.
struct ProcessGrid {
  Communicator tensor_parallel;  ///< of this rank: the group over which the vocabulary is sharded
  Communicator data_parallel;    ///< of this rank: those that hold the same shard
};

/// Splits `comm` into groups of `tensor_parallel` ranks. Groups never talk to each other.
/// Collective. Throws Error(invalid_argument) on every rank when the size does not divide.
SHARDLOSS_API ProcessGrid make_grid(MPI_Comm comm, int tensor_parallel,
                                    GridOrder order = GridOrder::contiguous,
                                    std::chrono::milliseconds deadline = default_deadline);

}  // namespace shardloss
