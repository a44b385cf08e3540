/// \file
/// Where the head computes: in this process's memory, or on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <shardloss/communicator.hpp>
#include <shardloss/tensor.hpp>
#include <vector>

#include "world.hpp"

namespace language_model {

/// What the head reads and writes.
enum class Slot : std::uint8_t {
  weight,
  bias,
  grad_weight,
  grad_bias,
  ids,
  embedded,
  hidden,
  targets,
  loss,
  normalizer,
  count
};

/// The memory, stream and communicator of the head. On the CPU a slot is the host's vector itself
/// and nothing is copied; on a GPU it is memory there, kept from call to call.
class Place {
 public:
  virtual ~Place() = default;
  virtual shardloss::Device device() const = 0;
  virtual shardloss::Stream stream() const = 0;
  virtual const shardloss::Communicator& communicator() const = 0;

  /// The slot with room for what `host` holds.
  template <class T>
  T* at(Slot slot, std::vector<T>& host) {
    return static_cast<T*>(memory(slot, host.data(), host.size() * sizeof(T)));
  }
  /// The same, holding the same.
  template <class T>
  const T* put(Slot slot, const std::vector<T>& host) {
    void* there = memory(slot, const_cast<T*>(host.data()), host.size() * sizeof(T));
    upload(there, host.data(), host.size() * sizeof(T));
    return static_cast<const T*>(there);
  }
  /// Copies the slot into `host`, waits for it.
  template <class T>
  void get(Slot slot, std::vector<T>& host) {
    download(host.data(), at(slot, host), host.size() * sizeof(T));
  }

 private:
  virtual void* memory(Slot slot, void* host, std::size_t bytes) = 0;
  virtual void upload(void* there, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* there, std::size_t bytes) = 0;
};

/// `gpu` < 0: the CPU. Collective over world.tensor. Throws std::runtime_error for a GPU where the
/// trainer was built without CUDA.
std::unique_ptr<Place> make_place(const World& world, int gpu);

}  // namespace language_model
