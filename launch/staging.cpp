#include "staging.hpp"

#include <optional>
#include <vector>

#include "shardloss/error.hpp"

#ifdef SHARDLOSS_LAUNCH_CUDA
#include "device_memory.hpp"
#endif

namespace shardloss::launch {

#ifdef SHARDLOSS_LAUNCH_CUDA
namespace {

/// The view of an array whose elements lie at `data`, densely, on `device`.
template <class View, class Pointer>
View dense_view(const HostArray& array, Pointer data, Device device) {
  const auto& shape = array.shape();
  if (shape.empty()) return View(data, array.dtype(), device);
  if (shape.size() == 1) return View(data, array.dtype(), shape[0], 1, device);
  return View(data, array.dtype(), {shape[0], shape[1]}, {shape[1], 1}, device);
}

}  // namespace

struct Staging::Impl {
  struct Output {
    HostArray* array;
    DeviceMemory memory;
  };
  explicit Impl(Device where) : device(where) {
    if (where.kind == DeviceKind::cpu) return;
    current.emplace(where.index);
    stream.emplace();
  }
  Device device;
  std::optional<CurrentDevice> current;
  std::optional<DeviceStream> stream;
  std::vector<DeviceMemory> inputs;
  std::vector<Output> outputs;
};

Staging::Staging(Device device) : impl_(std::make_unique<Impl>(device)) {}

ConstTensor Staging::in(const HostArray& array) {
  if (!array.given() || impl_->device.kind == DeviceKind::cpu) return array.view();
  const std::size_t width = static_cast<std::size_t>(array.columns()) * size_of(array.dtype());
  const std::size_t pitch =
      array.shape().size() == 2
          ? static_cast<std::size_t>(array.row_stride()) * size_of(array.dtype())
          : width;
  const DeviceMemory& memory = impl_->inputs.emplace_back(array.bytes());
  if (array.bytes() != 0)
    check_cuda(cudaMemcpy2DAsync(memory.data(), width, array.data(), pitch, width,
                                 static_cast<std::size_t>(array.rows()), cudaMemcpyHostToDevice,
                                 impl_->stream->get()),
               "copy to the device");
  return dense_view<ConstTensor, const void*>(array, memory.data(), impl_->device);
}

Tensor Staging::out(HostArray& array) {
  if (!array.given() || impl_->device.kind == DeviceKind::cpu) return array.mutable_view();
  impl_->outputs.push_back({&array, DeviceMemory(array.bytes())});
  return dense_view<Tensor, void*>(array, impl_->outputs.back().memory.data(), impl_->device);
}

void Staging::refill() {
  for (const auto& output : impl_->outputs)
    check_cuda(cudaMemcpyAsync(output.memory.data(), output.array->data(), output.array->bytes(),
                               cudaMemcpyHostToDevice, impl_->stream->get()),
               "copy to the device");
}

void Staging::fetch() {
  for (const auto& output : impl_->outputs)
    check_cuda(cudaMemcpyAsync(output.array->mutable_data(), output.memory.data(),
                               output.array->bytes(), cudaMemcpyDeviceToHost, impl_->stream->get()),
               "copy from the device");
  synchronize();
}

void Staging::synchronize() {
  if (impl_->stream) check_cuda(cudaStreamSynchronize(impl_->stream->get()), "the pass");
}

Stream Staging::stream() const noexcept {
  return impl_->stream ? Stream{impl_->stream->get()} : Stream{};
}

int visible_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

#else

struct Staging::Impl {};

Staging::Staging(Device device) : impl_(std::make_unique<Impl>()) {
  if (device.kind != DeviceKind::cpu)
    throw Error(ErrorCode::invalid_argument, "--device cuda: found a build without CUDA");
}

ConstTensor Staging::in(const HostArray& array) { return array.view(); }
Tensor Staging::out(HostArray& array) { return array.mutable_view(); }
void Staging::refill() {}
void Staging::fetch() {}
void Staging::synchronize() {}
Stream Staging::stream() const noexcept { return {}; }

int visible_gpus() { return 0; }

#endif

Staging::~Staging() = default;

}  // namespace shardloss::launch
