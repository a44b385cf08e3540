#include "device_tensors.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "elements.hpp"

#ifdef SHARDLOSS_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace shardloss::test {
namespace {

constexpr std::size_t guard_bytes = 256;
constexpr std::byte guard_value{0x5a};
constexpr std::byte poison_value{0xff};

bool is_set(const char* name, const char* to) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string(value) == to;
}

bool wants_cuda() { return is_set("SHARDLOSS_TEST_DEVICE", "cuda"); }

bool shares_gpu() { return is_set("SHARDLOSS_TEST_SHARED_GPU", "1"); }

// Two ranks of a host on one GPU are a mistake to NCCL, so each says that it is a host of its own,
// and is reached through the loopback's sockets.
void be_a_host(int rank) {
  const std::string name = "rank " + std::to_string(rank);
  if (is_set("NCCL_HOSTID", name.c_str())) return;  // threads may look by now
  setenv("NCCL_HOSTID", name.c_str(), 1);
  setenv("NCCL_NET", "Socket", 1);
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
}

#ifdef SHARDLOSS_TEST_CUDA
void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
#endif

std::byte* allocate_bytes(std::size_t bytes, Device device) {
#ifdef SHARDLOSS_TEST_CUDA
  if (device.kind == DeviceKind::cuda) {
    void* memory = nullptr;
    check(cudaSetDevice(device.index));
    check(cudaMalloc(&memory, bytes));
    return static_cast<std::byte*>(memory);
  }
#endif
  (void)device;
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{guard_bytes}));
}

void free_bytes(std::byte* memory, Device device) {
#ifdef SHARDLOSS_TEST_CUDA
  if (device.kind == DeviceKind::cuda) {
    cudaFree(memory);
    return;
  }
#endif
  (void)device;
  ::operator delete (memory, std::align_val_t{guard_bytes});
}

void copy_bytes(void* to, const void* from, std::size_t bytes, Device device) {
#ifdef SHARDLOSS_TEST_CUDA
  if (device.kind == DeviceKind::cuda) {
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    check(cudaStreamSynchronize(cudaStreamLegacy));  // pageable memory may still be under way
    return;
  }
#endif
  (void)device;
  std::memcpy(to, from, bytes);
}

}  // namespace

Device test_device(int rank) {
  if (!wants_cuda()) return {};
  if (!shares_gpu()) return {DeviceKind::cuda, rank};
  be_a_host(rank);
  return {DeviceKind::cuda, 0};
}

int gpus_needed(int ranks) { return shares_gpu() ? 1 : ranks; }

std::string missing_device(int ranks) {
  if (!wants_cuda()) return "";
#ifdef SHARDLOSS_TEST_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "no GPU";
  if (count < gpus_needed(ranks))
    return "no GPU for each of " + std::to_string(ranks) + " ranks, " + std::to_string(count) +
           " found";
  return "";
#else
  (void)ranks;
  return "no GPU code in this build";
#endif
}

Stream test_stream() {
#ifdef SHARDLOSS_TEST_CUDA
  if (wants_cuda()) {
    static const cudaStream_t stream = [] {
      cudaStream_t made = nullptr;
      check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
      return made;
    }();
    return {stream};
  }
#endif
  return {};
}

void synchronize() {
#ifdef SHARDLOSS_TEST_CUDA
  if (wants_cuda()) check(cudaDeviceSynchronize());
#endif
}

DeviceArray::DeviceArray(DType dtype, std::int64_t size, std::int64_t stride, Device device)
    : dtype_(dtype), device_(device), rows_(size), row_stride_(stride) {
  allocate();
}

DeviceArray::DeviceArray(DType dtype, std::int64_t rows, std::int64_t columns,
                         std::int64_t row_stride, Device device)
    : dtype_(dtype),
      device_(device),
      dims_(2),
      rows_(rows),
      columns_(columns),
      row_stride_(row_stride) {
  allocate();
}

DeviceArray DeviceArray::one(DType dtype, Device device) {
  DeviceArray array(dtype, 1, 1, device);
  array.dims_ = 0;
  return array;
}

DeviceArray::~DeviceArray() {
  if (memory_ != nullptr) free_bytes(memory_, device_);
}

DeviceArray::DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }

DeviceArray& DeviceArray::operator=(DeviceArray&& other) noexcept {
  std::swap(dtype_, other.dtype_);
  std::swap(device_, other.device_);
  std::swap(dims_, other.dims_);
  std::swap(rows_, other.rows_);
  std::swap(columns_, other.columns_);
  std::swap(row_stride_, other.row_stride_);
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  return *this;
}

std::size_t DeviceArray::offset(std::int64_t row, std::int64_t column) const {
  return guard_bytes + static_cast<std::size_t>(row * row_stride_ + column) * size_of(dtype_);
}

std::size_t DeviceArray::payload_bytes() const {
  if (rows_ == 0 || columns_ == 0) return 0;
  return offset(rows_ - 1, columns_) - guard_bytes;
}

void DeviceArray::allocate() {
  memory_ = allocate_bytes(payload_bytes() + 2 * guard_bytes, device_);
  data_ = memory_ + guard_bytes;
  poison();
}

std::vector<std::byte> DeviceArray::image() const {
  std::vector<std::byte> image(payload_bytes() + 2 * guard_bytes);
  copy_bytes(image.data(), memory_, image.size(), device_);
  return image;
}

void DeviceArray::load_image(const std::vector<std::byte>& image) {
  copy_bytes(memory_, image.data(), image.size(), device_);
}

void DeviceArray::poison() {
  std::vector<std::byte> image(payload_bytes() + 2 * guard_bytes, guard_value);
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < columns_; ++c)
      std::fill_n(image.begin() + static_cast<std::ptrdiff_t>(offset(r, c)), size_of(dtype_),
                  poison_value);
  load_image(image);
}

void DeviceArray::write(std::span<const double> values) {
  if (static_cast<std::int64_t>(values.size()) != elements())
    throw std::logic_error("DeviceArray::write: wrong number of values");
  std::vector<std::byte> bytes = image();
  std::size_t at = 0;
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < columns_; ++c)
      store(values[at++], dtype_, bytes.data() + offset(r, c));
  load_image(bytes);
}

void DeviceArray::write(std::span<const std::int64_t> values) {
  if (static_cast<std::int64_t>(values.size()) != elements() || columns_ != 1)
    throw std::logic_error("DeviceArray::write: wrong number of values");
  std::vector<std::byte> bytes = image();
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::int64_t value = values[static_cast<std::size_t>(r)];
    if (dtype_ == DType::int64)
      std::memcpy(bytes.data() + offset(r, 0), &value, sizeof value);
    else
      store(static_cast<double>(value), dtype_, bytes.data() + offset(r, 0));
  }
  load_image(bytes);
}

std::vector<double> DeviceArray::read() const {
  if (memory_ == nullptr) return {};
  const std::vector<std::byte> bytes = image();
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(elements()));
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < columns_; ++c)
      values.push_back(load(dtype_, bytes.data() + offset(r, c)));
  return values;
}

std::vector<std::byte> DeviceArray::bytes() const {
  if (memory_ == nullptr) return {};
  return image();
}

bool DeviceArray::intact() const {
  if (memory_ == nullptr) return true;
  std::vector<std::byte> bytes = image();
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < columns_; ++c)
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset(r, c)), size_of(dtype_),
                  guard_value);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == guard_value; });
}

Tensor DeviceArray::tensor() const {
  if (memory_ == nullptr) return {};
  if (dims_ == 0) return {data_, dtype_, device_};
  if (dims_ == 2) return {data_, dtype_, {rows_, columns_}, {row_stride_, 1}, device_};
  return {data_, dtype_, rows_, row_stride_, device_};
}

}  // namespace shardloss::test
