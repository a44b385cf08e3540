// A group of one: every collective is complete before it begins, whatever the device.
#include <cstring>

#include "shardloss/communicator.hpp"

namespace shardloss {
namespace {

class SelfTransport final : public Transport {
 public:
  SelfTransport() : Transport(0, 1, default_deadline) {}

  bool serves(DeviceKind) const noexcept override { return true; }
  std::string_view kind() const noexcept override { return "self"; }

  void exchange_host(const void* mine, void* all, std::size_t bytes) override {
    check();
    std::memcpy(all, mine, bytes);
  }
  Ticket all_gather(void*, std::span<const std::int64_t>, Stream) override { return complete(); }
  Ticket all_reduce(void*, std::int64_t, DType, Stream) override { return complete(); }
  Ticket reduce_scatter(void*, std::span<const std::int64_t>, DType, Stream) override {
    return complete();
  }
  void wait(Ticket, Stream) override { check(); }

 private:
  // Nothing leaves the rank, so nothing is counted.
  Ticket complete() const {
    check();
    return {};
  }
};

}  // namespace

Communicator self() { return Communicator(std::make_shared<SelfTransport>()); }

}  // namespace shardloss
