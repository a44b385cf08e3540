// The CUDA backend of a library built without CUDA: an error that says so.
#include "backend.hpp"
#include "shardloss/error.hpp"

namespace shardloss::detail {

std::unique_ptr<Backend> make_cuda_backend(const Problem&, const Plan&, const WorkspaceMap&,
                                           Transport&, Device) {
  throw Error(ErrorCode::invalid_argument,
              "device is cuda, but this library was built without CUDA");
}

}  // namespace shardloss::detail
