/// \file
/// Host arrays as the library sees them on a device: themselves on the CPU, copies on a GPU.
#pragma once

#include <memory>

#include "host_array.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss::launch {

/// Views of host arrays on a device, and the stream to use them on. Arrays must outlive it.
class Staging {
 public:
  explicit Staging(Device device);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// What `array` holds now; not given where it is not.
  ConstTensor in(const HostArray& array);
  /// Room for what will be written; holds what `array` holds after refill().
  Tensor out(HostArray& array);

  /// Brings the arrays of out() to the device.
  void refill();
  /// Brings them back; waits for the stream.
  void fetch();
  /// Waits for the stream.
  void synchronize();

  Stream stream() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// How many GPUs this process sees; 0 without CUDA.
int visible_gpus();

}  // namespace shardloss::launch
