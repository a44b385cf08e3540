// What the CUDA backend owns, how it chooses its products, and what waiting reports.
#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "../agreement.hpp"
#include "../chunks.hpp"
#include "cuda_backend.hpp"
#include "gemm_description.hpp"

namespace shardloss::detail {
namespace cuda {
namespace {

// Memory of a workspace or a Saved, whatever device is current.
void release(std::byte* memory) {
  cudaPointerAttributes attributes{};
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess ||
      cudaPointerGetAttributes(&attributes, memory) != cudaSuccess)
    return;
  cudaSetDevice(attributes.device);
  cudaFree(memory);
  cudaSetDevice(before);
}

Product product_named(const std::string& text) {
  for (const Product product : {Product::logits, Product::grad_hidden, Product::grad_weight})
    if (text == name(product)) return product;
  throw Error(ErrorCode::internal, "the plan has a product " + text);
}

// The dimension of a product that is the rows of a chunk.
std::int64_t& chunk_rows_of(PlannedGemm& gemm) {
  return product_named(gemm.name) == Product::grad_weight ? gemm.k : gemm.m;
}

std::uint32_t read(std::uint32_t& word) {
  return std::atomic_ref<std::uint32_t>(word).load(std::memory_order_acquire);
}

void clear(std::uint32_t& word) {
  std::atomic_ref<std::uint32_t>(word).store(0, std::memory_order_release);
}

}  // namespace

CudaBackend::CudaBackend(const Problem& problem, const Plan& plan, const WorkspaceMap& map,
                         Transport& transport, Device device)
    : problem_(problem),
      plan_(plan),
      map_(map),
      transport_(transport),
      device_(device),
      objective_(make_objective<float>(problem, plan.shard)),
      owned_(std::make_unique<Owned>()) {
  SHARDLOSS_CUDA(
      cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device.index));
  row_blocks_ = row_blocks();
  owned_->calls = DeviceBuffer(sizeof(std::uint64_t));
  owned_->calls.fill(std::uint64_t{0});
  if (map.has(Buffer::gemm)) {
    owned_->gemms = std::make_unique<Gemms>(problem.gemm, map.bytes(Buffer::gemm));
  } else if (scatter_scratch_bytes(plan.chunk_rows) > map.bytes(Buffer::row_scratch)) {
    throw Error(ErrorCode::internal, "the embedding's sort takes " +
                                         std::to_string(scatter_scratch_bytes(plan.chunk_rows)) +
                                         " bytes, the plan has " +
                                         std::to_string(map.bytes(Buffer::row_scratch)));
  }
  transport_.watch(owned_->mailbox.host());
}

CudaBackend::~CudaBackend() {
  transport_.unwatch(owned_->mailbox.host());
  if (transport_.failed() && transport_.size() > 1) {
    // A stuck pass may still use these, and freeing them would wait for it: leaked on purpose.
    owned_->mailbox.release();
    owned_->calls.release();
    (void)owned_->gemms.release();
  }
  try {
    const DeviceGuard guard(device_.index);
    owned_.reset();
  } catch (const Error&) {
    owned_.reset();
  }
}

int CudaBackend::row_blocks() const {
  const bool plain = !problem_.soft_targets && !problem_.entropy && problem_.label_smoothing == 0 &&
                     problem_.softcap == 0 && problem_.logit_scale > 0;
  if (!plain || plan_.ranks > 1 || problem_.dtype != DType::bfloat16 ||
      plan_.logits_dtype != DType::bfloat16)
    return 0;
  return blocks_to_hold(plan_.shard.vocab);
}

std::byte* CudaBackend::allocate(std::size_t bytes) {
  const DeviceGuard guard(device_.index);
  return DeviceBuffer(std::max<std::size_t>(bytes, 256)).release();
}

void (*CudaBackend::releaser() const noexcept)(std::byte*) { return release; }

void CudaBackend::check_memory(const void* memory, const char* name) const {
  cudaPointerAttributes attributes{};
  SHARDLOSS_CUDA(cudaPointerGetAttributes(&attributes, memory));
  const bool on_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  if (on_device && (attributes.type == cudaMemoryTypeManaged || attributes.device == device_.index))
    return;
  const std::string found =
      on_device ? "memory of cuda:" + std::to_string(attributes.device) : "host memory";
  throw Error(ErrorCode::invalid_argument,
              std::string(name) + ": found " + found +
                  ", wanted memory of cuda:" + std::to_string(device_.index));
}

// Where rows are gathered, each product has a collective beside it, and ends late where that keeps
// it from multiprocessors that it counted on: it is 400 us of 1600 for the 200 us of a gather, by
// the kernel. With four multiprocessors left to them a pass on two H200s took 1.5 to 2 % less.
// Where rows are replicated only dW has one beside it, and it made no difference.
int CudaBackend::products_multiprocessors() const {
  const int taken = gathers() ? transport_.multiprocessors() : 0;
  if (taken == 0) return 0;
  return std::max(2, multiprocessors_ - (taken + 1) / 2 * 2);  // clusters have two
}

GemmShape CudaBackend::shape_of(Product product, std::int64_t rows) const {
  const std::int64_t columns = plan_.shard.vocab;
  const std::int64_t hidden = problem_.hidden;
  GemmShape s;
  s.product = product;
  s.input = problem_.dtype;
  s.scaled = product != Product::logits && scales_gradients();
  s.multiprocessors = products_multiprocessors();
  const std::int64_t logits = logits_ld(columns);
  const auto widening =
      static_cast<std::int64_t>(size_of(plan_.logits_dtype) / size_of(problem_.dtype));
  switch (product) {
    case Product::logits:
      s.m = columns, s.n = rows, s.k = hidden;
      s.lda = hidden, s.ldb = hidden, s.ldd = logits;
      s.output = plan_.logits_dtype;
      s.bias = problem_.bias;
      break;
    case Product::grad_hidden:
      s.m = hidden, s.n = rows, s.k = columns;
      s.lda = hidden, s.ldb = logits * widening, s.ldd = hidden;
      s.output = map_.has(Buffer::grad_hidden) ? plan_.grad_hidden_partial_dtype
                                               : grad_dtype(problem_.grad_hidden, problem_.dtype);
      break;
    case Product::grad_weight:
      s.m = hidden, s.n = columns, s.k = rows;
      s.lda = hidden, s.ldb = logits * widening, s.ldd = hidden;
      s.output = map_.has(Buffer::grad_weight) ? DType::float32
                                               : grad_dtype(problem_.grad_weight, problem_.dtype);
      break;
  }
  return s;
}

// Rows that chunks of a pass of max_rows have beside the plan's.
std::set<std::int64_t> CudaBackend::other_chunk_rows(const Plan& plan) const {
  std::set<std::int64_t> rows;
  if (gathers()) {
    const std::vector<std::int64_t> even = even_rows(problem_.max_rows, plan.ranks);
    for (const Chunk& chunk : cut_group_rows(even, plan.chunk_rows, plan.slots, plan.rank))
      rows.insert(chunk.rows);
  } else {
    rows.insert(problem_.max_rows % plan.chunk_rows);
  }
  rows.erase(0);
  rows.erase(plan.chunk_rows);
  return rows;
}

void CudaBackend::choose_gemms(Plan& plan) {
  const DeviceGuard guard(device_.index);
  const std::vector<PlannedGemm> of_full_chunk = plan.gemms;
  for (const std::int64_t rows : other_chunk_rows(plan)) {
    for (PlannedGemm gemm : of_full_chunk) {
      chunk_rows_of(gemm) = rows;
      plan.gemms.push_back(gemm);
    }
  }
  for (PlannedGemm& gemm : plan.gemms) {
    if (plan.chunks == 0 || plan.shard.vocab == 0) {
      gemm.algorithm = "none: nothing to multiply";
      continue;
    }
    gemm.algorithm =
        owned_->gemms->prepare(shape_of(product_named(gemm.name), chunk_rows_of(gemm)));
  }
}

void CudaBackend::report_disagreement(bool running) {
  Mailbox& box = *owned_->mailbox.host();
  const std::optional<Error> error = disagreement_in(box);
  if (!error) return;
  if (!error->fatal()) {
    if (running) return;  // the pass ends by itself
    clear(box.disagreement);
    clear(box.invalid);  // of this call too
    throw *error;
  }
  const Error first = transport_.fail(*error);
  if (running) transport_.abort();
  throw first;
}

void CudaBackend::report_invalid_input() {
  Mailbox& box = *owned_->mailbox.host();
  const std::uint32_t kind = read(box.invalid);
  if (kind == 0) return;
  if (kind == Mailbox::invalid_row_index) {
    const std::string text = "row_index: entry " + std::to_string(box.invalid_row) + " is " +
                             std::to_string(box.invalid_value) +
                             ", outside the rows of its rank's hidden";
    clear(box.invalid);
    throw Error(ErrorCode::invalid_argument, text);
  }
  const Error error = invalid_id(box.invalid_row, box.invalid_value, problem_.vocab);
  clear(box.invalid);
  if (problem_.throw_invalid_target) throw error;
}

void CudaBackend::wait(Stream stream) {
  using std::chrono::steady_clock;
  const DeviceGuard guard(device_.index);
  const auto begin = steady_clock::now();
  const auto limit = 2 * transport_.deadline();
  auto pause = std::chrono::microseconds(20);
  for (;;) {
    transport_.check();
    const cudaError_t status = cudaStreamQuery(stream_of(stream));
    if (status == cudaSuccess) break;
    cudaGetLastError();  // neither is for the next launch to report
    if (status == cudaErrorStreamCaptureUnsupported)
      throw Error(ErrorCode::invalid_argument, "wait: the stream is being captured");
    if (status != cudaErrorNotReady) {
      throw transport_.fail(Error(ErrorCode::device,
                                  std::string("the stream ended in ") + cudaGetErrorName(status) +
                                      " (" + cudaGetErrorString(status) + ")",
                                  true));
    }
    report_disagreement(true);
    if (steady_clock::now() - begin > limit) {
      throw transport_.fail(Error(ErrorCode::timeout,
                                  "the stream did not finish within twice the deadline, " +
                                      std::to_string(limit.count()) + " ms",
                                  true));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1000));
  }
  transport_.check();
  report_disagreement(false);
  report_invalid_input();
}

}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(const Problem& problem, const Plan& plan,
                                           const WorkspaceMap& map, Transport& transport,
                                           Device device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || device.index < 0 || device.index >= count) {
    cudaGetLastError();
    throw Error(ErrorCode::invalid_argument,
                "device cuda:" + std::to_string(device.index) + ": found " +
                    std::to_string(status == cudaSuccess ? count : 0) + " CUDA devices (" +
                    cudaGetErrorName(status) + ")");
  }
  const cuda::DeviceGuard guard(device.index);
  return std::make_unique<cuda::CudaBackend>(problem, plan, map, transport, device);
}

}  // namespace shardloss::detail
