// One rank of a job whose last rank is killed in the middle of a call. The deadline is long: it is
// the launcher that ends the job.
#include <mpi.h>

#include <chrono>
#include <cstdio>

#include "call.hpp"
#include "faulty_transport.hpp"
#include "sample.hpp"
#include "shardloss/mpi.hpp"
#include "world.hpp"

int main(int argc, char** argv) {
  using namespace shardloss;
  using namespace shardloss::test;
  MPI_Init(&argc, &argv);
  Problem problem = plain_problem(12, 8, 23);
  problem.chunking = {Chunking::Rule::rows, 4};
  const Sample sample = fill(problem, ranks(), 1);
  Fault fault;
  if (rank() == ranks() - 1) fault = {.misdeed = Misdeed::kill, .step = "grad_hidden", .chunk = 1};
  const Communicator communicator(
      std::make_shared<FaultyTransport>(from_mpi(MPI_COMM_WORLD, std::chrono::seconds(60)), fault));
  const Loss loss(problem, communicator);
  const Tensors tensors(sample, rank(), ranks(), {});
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) {
    std::puts("victim: the call begins");
    std::fflush(stdout);
  }
  run(loss, tensors, Way::fused);
  std::puts("victim: the call came back");
  MPI_Finalize();
}
