// One rank of a job on GPUs whose last rank is killed in the middle of a call. The deadline is
// long: it is the launcher that ends the job.
#include <mpi.h>

#include <cstdio>
#include <memory>
#include <string>

#include "faulty_transport.hpp"
#include "gpu_test.hpp"

int main(int argc, char** argv) {
  using namespace shardloss;
  using namespace shardloss::test;
  MPI_Init(&argc, &argv);
  if (const std::string missing = missing_device(ranks()); !missing.empty()) {
    if (rank() == 0) std::printf("victim: %s\n", missing.c_str());
    MPI_Finalize();
    return 0;
  }
  SHARDLOSS_TEST_CUDA_CALL(cudaSetDevice(device().index));
  Problem problem = plain_problem(12, 8, 23);
  problem.chunking = {Chunking::Rule::rows, 4};
  const Sample sample = fill(problem, ranks(), 1);
  const Communicator plain = group(std::chrono::seconds(60));
  const Tensors tensors(sample, rank(), ranks(), device());
  run(Loss(problem, plain, device()), tensors, Way::fused);  // all is loaded and connected

  Fault fault;
  if (rank() == ranks() - 1) fault = {.misdeed = Misdeed::kill, .step = "grad_hidden", .chunk = 1};
  const Loss loss(problem, Communicator(std::make_shared<FaultyTransport>(plain, fault)), device());
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) {
    std::puts("victim: the call begins");
    std::fflush(stdout);
  }
  run(loss, tensors, Way::fused);
  std::puts("victim: the call came back");
  MPI_Finalize();
}
