// Loss: calls from their arguments to the pass, and what forward saves for backward.
#include "shardloss/loss.hpp"

#include <string>
#include <utility>

#include "instance.hpp"
#include "pass.hpp"
#include "validate.hpp"

namespace shardloss {
namespace {

// Arguments that a way does not have.
const Outputs no_outputs{};
const Upstreams no_upstreams{};
const Gradients no_gradients{};

void check_block(const char* label, const void* memory, std::size_t bytes, std::size_t wanted) {
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(memory) % 256;
  if (memory != nullptr && bytes >= wanted && past == 0) return;
  throw Error(ErrorCode::invalid_argument,
              std::string(label) + ": found " + (memory == nullptr ? "null, " : "") +
                  std::to_string(bytes) + " bytes, " + std::to_string(past) +
                  " past a multiple of 256; wanted " + std::to_string(wanted) +
                  " bytes at a multiple of 256");
}

}  // namespace

Saved::Saved(std::unique_ptr<State> state) : state_(std::move(state)) {}
Saved::~Saved() = default;
Saved::Saved(Saved&&) noexcept = default;
Saved& Saved::operator=(Saved&&) noexcept = default;

struct Loss::Impl : detail::Instance {
  Impl(const Problem& p, const Communicator& c, Device d, WorkspaceOwner owner)
      : Instance("Loss", p, c, d, {detail::map_workspace, true, owner == WorkspaceOwner::library}) {
  }

  std::byte* workspace_for(const Execution& on) const {
    if (on.workspace == nullptr && workspace != nullptr) return workspace;
    check_block("workspace", on.workspace, on.workspace_bytes, plan.workspace_bytes);
    return static_cast<std::byte*>(on.workspace);
  }

  void run(detail::Call& call, const Execution& on) {
    call.stream = on.stream;
    call.object = object;
    admit(call.number, [&] {
      call.workspace = workspace_for(on);
      detail::check_saved(call, id, device);
      detail::validate_call(problem, plan, device, call);
    });
    // Whatever becomes of the call, it writes into it.
    const bool fills = call.operation == detail::Operation::forward && call.saved != nullptr;
    if (fills) call.saved->group_rows = -1;
    detail::run_pass(call, plan, map, *backend, communicator.transport());
    if (!fills) return;
    call.saved->group_rows = call.group_rows;
    call.saved->rows_word = call.rows_word;
    call.saved->call = call.number;
  }

  std::unique_ptr<Saved::State> new_saved() const {
    auto state = std::make_unique<Saved::State>();
    state->device = device;
    state->loss = id;
    return state;
  }
};

Loss::Loss(const Problem& problem, const Communicator& communicator, Device device,
           WorkspaceOwner workspace)
    : impl_(std::make_unique<Impl>(problem, communicator, device, workspace)) {}

Loss::~Loss() = default;
Loss::Loss(Loss&&) noexcept = default;
Loss& Loss::operator=(Loss&&) noexcept = default;

const Problem& Loss::problem() const noexcept { return impl_->problem; }
const Plan& Loss::plan() const noexcept { return impl_->plan; }
const Communicator& Loss::communicator() const noexcept { return impl_->communicator; }
Device Loss::device() const noexcept { return impl_->device; }

Saved Loss::make_saved() const {
  auto state = impl_->new_saved();
  state->memory = impl_->backend->allocate(impl_->plan.saved_bytes);
  state->release = impl_->backend->releaser();
  return Saved(std::move(state));
}

Saved Loss::make_saved(void* memory, std::size_t bytes) const {
  check_block("saved", memory, bytes, impl_->plan.saved_bytes);
  impl_->backend->check_memory(memory, "saved");
  auto state = impl_->new_saved();
  state->memory = static_cast<std::byte*>(memory);
  return Saved(std::move(state));
}

void Loss::forward(const Inputs& inputs, const Outputs& outputs, Saved* saved,
                   const Execution& on) const {
  detail::Call call{detail::Operation::forward, &inputs, &outputs, &no_upstreams, &no_gradients};
  call.saves = saved != nullptr;
  if (call.saves) call.saved = saved->state();
  impl_->run(call, on);
}

void Loss::backward(const Inputs& inputs, const Saved& saved, const Upstreams& upstreams,
                    const Gradients& gradients, const Execution& on) const {
  detail::Call call{
      detail::Operation::backward, &inputs, &no_outputs, &upstreams, &gradients, saved.state()};
  call.saves = true;
  impl_->run(call, on);
}

void Loss::forward_backward(const Inputs& inputs, const Outputs& outputs,
                            const Upstreams& upstreams, const Gradients& gradients,
                            const Execution& on) const {
  detail::Call call{detail::Operation::forward_backward, &inputs, &outputs, &upstreams, &gradients};
  impl_->run(call, on);
}

void Loss::add_denominator(const Inputs& inputs, const Tensor& total, const Execution& on) const {
  impl_->communicator.transport().check();
  detail::Call call{detail::Operation::forward, &inputs, &no_outputs, &no_upstreams, &no_gradients};
  call.stream = on.stream;
  detail::validate_denominator(impl_->problem, impl_->device, total, call);
  call.workspace = impl_->workspace_for(on);
  impl_->backend->add_denominator(call, total);
}

void Loss::wait(Stream stream) const { impl_->backend->wait(stream); }

}  // namespace shardloss
