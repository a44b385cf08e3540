/// \file
/// A transport that draws a progress bar from the steps of the passes on it.
#pragma once

#include <memory>

#include "forwarding_transport.hpp"
#include "progress.hpp"
#include "shardloss/plan.hpp"

namespace shardloss::launch {

/// On the CPU a step is noted when it begins, so that the bar follows the work.
class ProgressTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  /// `chunks` of all calls together.
  void expect(std::int64_t chunks) { bar_ = std::make_unique<Progress>("chunks", chunks, true); }
  void finish() { bar_.reset(); }

  void note_step(const char* name, std::uint64_t call, std::int64_t chunk) noexcept override {
    ForwardingTransport::note_step(name, call, chunk);
    if (call != call_) begun_ += last_ + 1, last_ = -1, call_ = call;
    if (chunk <= last_) return;
    last_ = chunk;
    if (bar_) bar_->at(begun_ + chunk);
  }

 private:
  std::unique_ptr<Progress> bar_;
  std::uint64_t call_ = 0;
  std::int64_t last_ = -1;
  std::int64_t begun_ = 0;
};

/// Where somebody looks at the screen, a group whose passes draw a bar; else the same group.
inline Communicator with_progress(const Communicator& group,
                                  std::shared_ptr<ProgressTransport>& bar) {
  if (group.rank() != 0 || isatty(STDERR_FILENO) == 0) return group;
  bar = std::make_shared<ProgressTransport>(group);
  return Communicator(bar);
}

}  // namespace shardloss::launch
