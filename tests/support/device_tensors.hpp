/// \file
/// Memory on the device under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardloss/tensor.hpp"

namespace shardloss::test {

/// Where a rank of a test runs: the CPU, or with SHARDLOSS_TEST_DEVICE=cuda GPU `rank`. Where
/// SHARDLOSS_TEST_SHARED_GPU is 1 all ranks share GPU 0 as if each were on a host of its own.
Device test_device(int rank);

/// How many GPUs of this machine so many ranks take.
int gpus_needed(int ranks);

/// Why this machine cannot run the tests of `ranks` ranks there; empty: it can.
std::string missing_device(int ranks);

/// A stream for the tests' calls: made once for each process, never the default stream.
Stream test_stream();

/// Waits for everything on the device under test.
void synchronize();

/// A strided array of one dtype on the test device, between two guards of known bytes. Fresh and
/// poisoned memory is all ones: NaN in every floating dtype, -1 and 255 in the others.
class DeviceArray {
 public:
  DeviceArray() = default;
  /// A vector.
  DeviceArray(DType dtype, std::int64_t size, std::int64_t stride = 1, Device device = {});
  /// A scalar.
  static DeviceArray one(DType dtype, Device device);
  /// A matrix of unit column stride.
  DeviceArray(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
              Device device);
  ~DeviceArray();
  DeviceArray(DeviceArray&& other) noexcept;
  DeviceArray& operator=(DeviceArray&& other) noexcept;

  /// The elements, each rounded to the dtype.
  void write(std::span<const double> values);
  /// 64-bit integers that a double does not hold.
  void write(std::span<const std::int64_t> values);
  void poison();
  std::vector<double> read() const;
  /// The memory as it is, gaps between strided elements included: for bitwise comparisons.
  std::vector<std::byte> bytes() const;
  /// False when something wrote before the first or past the last element, or between them.
  bool intact() const;

  Tensor tensor() const;
  void* data() const { return data_; }
  std::int64_t elements() const { return rows_ * columns_; }
  bool empty() const { return memory_ == nullptr; }

 private:
  void allocate();
  std::size_t payload_bytes() const;
  std::vector<std::byte> image() const;
  void load_image(const std::vector<std::byte>& image);
  std::size_t offset(std::int64_t row, std::int64_t column) const;

  DType dtype_ = DType::float32;
  Device device_;
  int dims_ = 1;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 1;
  std::int64_t row_stride_ = 1;
  std::byte* memory_ = nullptr;  // guard, payload, guard
  void* data_ = nullptr;
};

}  // namespace shardloss::test
