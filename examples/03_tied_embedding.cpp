// Tied weights: the embedding and the head are one sharded matrix with one gradient buffer.
// mpirun -n 4 03_tied_embedding
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <shardloss/mpi.hpp>
#include <shardloss/shardloss.hpp>
#include <vector>

namespace {

/// A model without hidden layers: each word predicts the next one through its embedding.
void run() {
  namespace sl = shardloss;
  const sl::Problem problem{.max_rows = 6, .hidden = 16, .vocab = 50};
  const sl::Communicator group = sl::from_mpi(MPI_COMM_WORLD);
  const sl::VocabParallelEmbedding embedding(problem, group);
  const sl::Loss head(problem, group);

  const std::int64_t N = problem.max_rows, D = problem.hidden;
  const sl::Shard shard = head.plan().shard;
  const std::vector<std::int32_t> words = {3, 14, 15, 9, 26, 5};
  const std::vector<std::int32_t> next = {14, 15, 9, 26, 5, 3};
  std::vector<float> weight(shard.width * D), grad_weight(shard.width * D), states(N * D);
  for (std::int64_t i = 0; i < shard.width * D; ++i)  // any values that shards can make alone
    weight[i] = 0.3F * std::sin(static_cast<float>(shard.first * D + i));

  const auto ids = sl::vector(words.data(), N);
  const auto w = sl::matrix(weight.data(), shard.width, D);
  const auto dw = sl::matrix(grad_weight.data(), shard.width, D);
  const auto x = sl::matrix(states.data(), N, D);
  std::vector<float> grad_states(N * D);
  const auto dx = sl::matrix(grad_states.data(), N, D);

  for (int step = 0; step < 50; ++step) {
    float loss = 0;
    embedding.forward(ids, w, x);
    head.forward_backward({.hidden = x, .weight = w, .targets = sl::vector(next.data(), N)},
                          {.loss = sl::scalar(&loss)}, {}, {.hidden = dx, .weight = dw});
    embedding.backward(ids, dx, dw);  // adds to the gradient that the head wrote
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] -= grad_weight[i];
    if (group.rank() == 0 && step % 10 == 9) std::printf("step %d: loss %.4f\n", step + 1, loss);
  }
  head.wait();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run();
  } catch (const shardloss::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
