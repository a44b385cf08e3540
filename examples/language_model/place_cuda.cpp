// The head on one GPU, its group over NCCL. The hidden layers and AdamW stay on the CPU: what is
// shown here is the head, so its inputs and outputs are copied.
#include "place_cuda.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <shardloss/nccl.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace language_model {
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// The NCCL group of world.tensor; its id travels over the group's MPI communicator.
shardloss::Communicator make_group(const World& world, shardloss::Device device) {
  const auto& group = world.tensor;
  if (group.size() == 1) return shardloss::self();
  shardloss::NcclId id{};
  if (group.rank() == 0) id = shardloss::make_nccl_id();
  std::vector<shardloss::NcclId> all(static_cast<std::size_t>(group.size()));
  group.transport().exchange_host(&id, all.data(), sizeof id);
  return shardloss::from_nccl_id(all.front(), group.size(), group.rank(), device, group.deadline());
}

class Gpu : public Place {
 public:
  Gpu(const World& world, int gpu)
      : device_{shardloss::DeviceKind::cuda, gpu}, communicator_(make_group(world, device_)) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Gpu() override {
    for (const Memory& memory : slots_) cudaFree(memory.data);
    cudaStreamDestroy(stream_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  shardloss::Device device() const override { return device_; }
  shardloss::Stream stream() const override { return {stream_}; }
  const shardloss::Communicator& communicator() const override { return communicator_; }

 private:
  struct Memory {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  void* memory(Slot slot, void*, std::size_t bytes) override {
    Memory& kept = slots_[static_cast<std::size_t>(slot)];
    if (kept.bytes < bytes) {
      check(cudaFree(std::exchange(kept, {}).data), "cudaFree");
      check(cudaMalloc(&kept.data, bytes), "cudaMalloc");
      kept.bytes = bytes;
    }
    return kept.data;
  }
  void upload(void* there, const void* host, std::size_t bytes) override {
    check(cudaMemcpyAsync(there, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  }
  void download(void* host, const void* there, std::size_t bytes) override {
    check(cudaMemcpyAsync(host, there, bytes, cudaMemcpyDeviceToHost, stream_), "download");
    check(cudaStreamSynchronize(stream_), "download");
  }

  shardloss::Device device_;
  shardloss::Communicator communicator_;
  cudaStream_t stream_ = nullptr;
  std::array<Memory, static_cast<std::size_t>(Slot::count)> slots_;
};

}  // namespace

std::unique_ptr<Place> make_cuda_place(const World& world, int gpu) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "--device cuda");
  if (gpu >= count)
    throw std::runtime_error("--device cuda: more ranks than the " + std::to_string(count) +
                             " GPUs of this host");
  check(cudaSetDevice(gpu), "cudaSetDevice");
  return std::make_unique<Gpu>(world, gpu);
}

}  // namespace language_model
