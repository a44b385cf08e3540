/// \file
/// A transport whose collectives arrive late, to see what a pass hides.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <thread>

#include "forwarding_transport.hpp"

namespace shardloss::launch {

/// No collective is complete sooner than the delay after its start.
class DelayTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  void set_delay(std::chrono::microseconds delay) { delay_ = delay; }

  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override {
    return keep(to().all_gather(data, bytes, compute));
  }
  Ticket all_reduce(void* data, std::int64_t elements, DType dtype, Stream compute) override {
    return keep(to().all_reduce(data, elements, dtype, compute));
  }
  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override {
    return keep(to().reduce_scatter(data, counts, dtype, compute));
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

 private:
  Ticket keep(Ticket ticket) {
    due_[ticket.id] = std::chrono::steady_clock::now() + delay_;
    return ticket;
  }

  std::chrono::microseconds delay_{0};
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> due_;
};

}  // namespace shardloss::launch
