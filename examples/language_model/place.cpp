#include "place.hpp"

#include <stdexcept>

#include "place_cuda.hpp"

namespace language_model {
namespace {

class Host : public Place {
 public:
  explicit Host(const World& world) : communicator_(world.tensor) {}
  shardloss::Device device() const override { return {}; }
  shardloss::Stream stream() const override { return {}; }
  const shardloss::Communicator& communicator() const override { return communicator_; }

 private:
  void* memory(Slot, void* host, std::size_t) override { return host; }
  void upload(void*, const void*, std::size_t) override {}
  void download(void*, const void*, std::size_t) override {}

  shardloss::Communicator communicator_;
};

}  // namespace

std::unique_ptr<Place> make_place(const World& world, int gpu) {
  if (gpu >= 0) return make_cuda_place(world, gpu);
  return std::make_unique<Host>(world);
}

}  // namespace language_model
