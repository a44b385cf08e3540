// The same with the weight sharded over the ranks of an MPI job: mpirun -n 4 02_mpi
#include <mpi.h>

#include <cstdio>
#include <shardloss/mpi.hpp>
#include <shardloss/shardloss.hpp>
#include <vector>

namespace {

void run() {
  namespace sl = shardloss;
  const std::int64_t N = 1024, D = 64, V = 32000;
  const sl::Communicator group = sl::from_mpi(MPI_COMM_WORLD);
  const sl::Loss head({.max_rows = N, .hidden = D, .vocab = V}, group);

  // This rank's rows of the weight, and of its gradient.
  const std::int64_t rows = head.plan().shard.width;
  std::vector<float> weight(rows * D, 0.02F), grad_weight(rows * D);
  // The same on every rank; so will grad_hidden be.
  std::vector<float> hidden(N * D, 0.01F), grad_hidden(N * D);
  std::vector<std::int64_t> targets(N, 7);
  float loss = 0;

  head.forward_backward({.hidden = sl::matrix(hidden.data(), N, D),
                         .weight = sl::matrix(weight.data(), rows, D),
                         .targets = sl::vector(targets.data(), N)},
                        {.loss = sl::scalar(&loss)}, {},
                        {.hidden = sl::matrix(grad_hidden.data(), N, D),
                         .weight = sl::matrix(grad_weight.data(), rows, D)});
  head.wait();

  std::printf("rank %d of %d: loss %.6f, %lld of %lld vocabulary rows\n", group.rank(),
              group.size(), loss, static_cast<long long>(rows), static_cast<long long>(V));
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run();
  } catch (const shardloss::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);  // the other ranks may wait for this one
  }
  MPI_Finalize();
}
