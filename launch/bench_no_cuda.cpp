// `shardloss bench --device cuda` in a build without CUDA.
#include "bench.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {

Json bench_cuda(World&, const Options&) {
  throw Error(ErrorCode::invalid_argument, "--device cuda: found a build without CUDA");
}

}  // namespace shardloss::launch
