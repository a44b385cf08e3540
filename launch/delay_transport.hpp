/// \file
/// A transport whose collectives arrive late, to see what a pass hides.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "shardloss/communicator.hpp"

namespace shardloss::launch {

/// Forwards to another transport; no collective is complete sooner than the delay after its start.
class DelayTransport final : public Transport {
 public:
  explicit DelayTransport(Communicator inner)
      : Transport(inner.rank(), inner.size(), inner.deadline()), inner_(std::move(inner)) {}

  void set_delay(std::chrono::microseconds delay) { delay_ = delay; }

  bool serves(DeviceKind device) const noexcept override { return to().serves(device); }
  std::string_view kind() const noexcept override { return to().kind(); }

  void exchange_host(const void* mine, void* all, std::size_t bytes) override {
    to().exchange_host(mine, all, bytes);
  }
  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override {
    return start([&] { return to().all_gather(data, bytes, compute); });
  }
  Ticket all_reduce(void* data, std::int64_t elements, DType dtype, Stream compute) override {
    return start([&] { return to().all_reduce(data, elements, dtype, compute); });
  }
  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override {
    return start([&] { return to().reduce_scatter(data, counts, dtype, compute); });
  }
  void wait(Ticket ticket, Stream compute) override {
    const auto found = due_.find(ticket.id);
    if (found != due_.end()) {
      while (std::chrono::steady_clock::now() < found->second) {
        to().progress();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      due_.erase(found);
    }
    to().wait(ticket, compute);
  }
  void progress() override { to().progress(); }
  void abort() override {
    inner_.abort();
    Transport::abort();
  }

 private:
  Transport& to() const noexcept { return inner_.transport(); }

  template <class Collective>
  Ticket start(Collective collective) {
    const std::int64_t before = to().traffic().bytes;
    const Ticket ticket = collective();
    count(to().traffic().bytes - before);
    due_[ticket.id] = std::chrono::steady_clock::now() + delay_;
    return ticket;
  }

  Communicator inner_;
  std::chrono::microseconds delay_{0};
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> due_;  // by the inner ticket
};

}  // namespace shardloss::launch
