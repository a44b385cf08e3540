/// \file
/// A transport that passes everything on to another, for those that watch or delay it.
#pragma once

#include <utility>

#include "shardloss/communicator.hpp"

namespace shardloss::launch {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Communicator inner)
      : Transport(inner.rank(), inner.size(), inner.deadline()), inner_(std::move(inner)) {}

  bool serves(DeviceKind device) const noexcept override { return to().serves(device); }
  std::string_view kind() const noexcept override { return to().kind(); }
  int multiprocessors() const noexcept override { return to().multiprocessors(); }
  void exchange_host(const void* mine, void* all, std::size_t bytes) override {
    to().exchange_host(mine, all, bytes);
  }
  Ticket all_gather(void* data, std::span<const std::int64_t> bytes, Stream compute) override {
    return to().all_gather(data, bytes, compute);
  }
  Ticket all_reduce(void* data, std::int64_t elements, DType dtype, Stream compute) override {
    return to().all_reduce(data, elements, dtype, compute);
  }
  Ticket reduce_scatter(void* data, std::span<const std::int64_t> counts, DType dtype,
                        Stream compute) override {
    return to().reduce_scatter(data, counts, dtype, compute);
  }
  void wait(Ticket ticket, Stream compute) override { to().wait(ticket, compute); }
  void progress() override { to().progress(); }
  void watch(Mailbox* mailbox) override { to().watch(mailbox); }
  void unwatch(Mailbox* mailbox) override { to().unwatch(mailbox); }
  void abort() override { to().abort(); }
  void check() const override { to().check(); }
  bool failed() const noexcept override { return to().failed(); }
  Error fail(const Error& error) override { return to().fail(error); }
  void note_step(const char* name, std::uint64_t call, std::int64_t chunk) noexcept override {
    to().note_step(name, call, chunk);
  }
  Traffic traffic() const noexcept override { return to().traffic(); }

 protected:
  Transport& to() const noexcept { return inner_.transport(); }

 private:
  Communicator inner_;
};

}  // namespace shardloss::launch
