// ln 4 is the loss of four equal logits. Exits with 0 when the installed library says so too.
#include <cmath>
#include <cstdio>

#include "shardloss/shardloss.hpp"
#ifdef WITH_MPI
#include "shardloss/mpi.hpp"
#endif

namespace {

double loss_of_equal_logits(const shardloss::Communicator& communicator) {
  shardloss::Problem problem;
  problem.max_rows = 1;
  problem.hidden = 2;
  problem.vocab = 4;
  const shardloss::Loss head(problem, communicator);
  const float hidden[2] = {1, 2};
  const float weight[8] = {};
  const std::int64_t target = 3;
  float loss = 0;
  head.forward({.hidden = shardloss::matrix(hidden, 1, 2),
                .weight = shardloss::matrix(weight, 4, 2),
                .targets = shardloss::vector(&target, 1)},
               {.loss = shardloss::scalar(&loss)});
  return static_cast<double>(loss);
}

}  // namespace

int main(int argc, char** argv) {
  double loss = loss_of_equal_logits(shardloss::self());
#ifdef WITH_MPI
  MPI_Init(&argc, &argv);
  loss += loss_of_equal_logits(shardloss::from_mpi(MPI_COMM_SELF));
  loss /= 2;
  MPI_Finalize();
#else
  (void)argc;
  (void)argv;
#endif
  // An error of the library is caught as what it is, across the library's border.
  try {
    shardloss::make_plan({}, 1, 0, shardloss::DeviceKind::cpu);
    return 2;
  } catch (const shardloss::Error& error) {
    std::printf("loss %.6f, want %.6f; %s\n", loss, std::log(4.0), error.what());
  }
  return std::abs(loss - std::log(4.0)) < 1e-6 ? 0 : 1;
}
