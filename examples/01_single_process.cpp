// Loss and gradients of a language-model head in one process, without MPI or GPU.
#include <cstdio>
#include <shardloss/shardloss.hpp>
#include <vector>

int main() {
  namespace sl = shardloss;
  const std::int64_t N = 1024, D = 64, V = 32000;
  std::vector<float> hidden(N * D, 0.01F), weight(V * D, 0.02F), grad_hidden(N * D),
      grad_weight(V * D);
  std::vector<std::int64_t> targets(N, 7);
  float loss = 0;

  const sl::Loss head({.max_rows = N, .hidden = D, .vocab = V}, sl::self());
  head.forward_backward({.hidden = sl::matrix(hidden.data(), N, D),
                         .weight = sl::matrix(weight.data(), V, D),
                         .targets = sl::vector(targets.data(), N)},
                        {.loss = sl::scalar(&loss)}, {},
                        {.hidden = sl::matrix(grad_hidden.data(), N, D),
                         .weight = sl::matrix(grad_weight.data(), V, D)});

  std::printf("loss %.6f, workspace %zu bytes instead of %zu for the logits\n", loss,
              head.plan().workspace_bytes, sizeof(float) * N * V);
}
