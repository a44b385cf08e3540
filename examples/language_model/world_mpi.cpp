// The job under MPI; a process that mpirun did not start is a job of one.
#include <mpi.h>

#include <cstdlib>
#include <shardloss/mpi.hpp>

#include "world.hpp"

namespace language_model {

Job::Job(int* argc, char*** argv) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm host;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local_rank_);
  MPI_Comm_free(&host);
}

Job::~Job() { MPI_Finalize(); }

void Job::abort(int status) const {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::abort();
}

World make_world(const Job&, int tensor_parallel, bool strided, bool row_sharded,
                 std::chrono::milliseconds deadline) {
  const auto order = strided ? shardloss::GridOrder::strided : shardloss::GridOrder::contiguous;
  auto grid = shardloss::make_grid(MPI_COMM_WORLD, tensor_parallel, order, deadline);
  return {shardloss::from_mpi(MPI_COMM_WORLD, deadline), grid.tensor_parallel, grid.data_parallel,
          row_sharded};
}

}  // namespace language_model
