// Construction with its handshake, common to the loss and the embedding.
#include "instance.hpp"

#include <new>
#include <optional>
#include <string>

#include "agreement.hpp"
#include "pass.hpp"
#include "shardloss/error.hpp"

namespace shardloss::detail {

namespace {

std::atomic<std::uint64_t> instances{0};

}  // namespace

Instance::Instance(const char* what, const Problem& p, const Communicator& c, Device d, Needs needs)
    : problem(p), communicator(c), device(d), id(++instances) {
  Transport& transport = communicator.transport();
  transport.check();
  std::optional<Error> verdict;
  try {
    prepare(needs);
  } catch (const Error& error) {
    verdict = error;
  } catch (const std::bad_alloc&) {
    verdict.emplace(ErrorCode::out_of_memory, std::string("preparing the ") + what);
  }
  try {
    object = handshake(transport, what, problem, device, verdict, id);
  } catch (...) {
    // The destructor does not run for an object that was never made.
    if (workspace != nullptr) backend->releaser()(workspace);
    throw;
  }
}

Instance::~Instance() {
  // After a failure a collective may still write into the workspace: it is leaked on purpose.
  const bool stuck = communicator.failed() && communicator.size() > 1;
  if (workspace != nullptr && !stuck) backend->releaser()(workspace);
}

void Instance::prepare(Needs needs) {
  Transport& transport = communicator.transport();
  if (!transport.serves(device.kind)) {
    throw Error(ErrorCode::invalid_argument,
                "a communicator of kind " + std::string(transport.kind()) +
                    " does not serve device " + std::string(name(device.kind)));
  }
  plan = make_plan(problem, transport.size(), transport.rank(), device.kind);
  map = needs.map(problem, plan);
  backend = device.kind == DeviceKind::cpu
                ? make_cpu_backend(problem, plan, map, transport)
                : make_cuda_backend(problem, plan, map, transport, device);
  if (needs.products) backend->choose_gemms(plan);
  if (needs.workspace) workspace = backend->allocate(map.total());
}

void Instance::refuse(std::uint64_t number) {
  if (communicator.size() > 1 && device.kind == DeviceKind::cpu) {
    refuse_call(number, map, communicator.transport());
  }
}

}  // namespace shardloss::detail
