// When each kernel of a process ran, for timelines of a pass. A library that the CUDA driver loads
// into any program; it needs CUPTI, which comes with the CUDA Toolkit, and no profiler:
//   g++ -std=c++20 -O2 -shared -fPIC kernel_trace.cpp -o libkernel_trace.so
//     -I"$CUPTI/include" -I"$CUDA/include" -L"$CUPTI/lib" -lcupti
//   KERNEL_TRACE=trace CUDA_INJECTION64_PATH=$PWD/libkernel_trace.so shardloss bench ...
// writes trace.RANK.csv (rank by Open MPI, else 0), a line a kernel in the order of their records:
//   begin in ns, end in ns, stream, blocks, name
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace {

std::FILE* file = nullptr;
std::mutex one_at_a_time;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  const std::lock_guard lock(one_at_a_time);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(file, "%llu,%llu,%u,%d,%.60s\n", static_cast<unsigned long long>(kernel->start),
                 static_cast<unsigned long long>(kernel->end), kernel->streamId,
                 kernel->gridX * kernel->gridY * kernel->gridZ, kernel->name);
  }
  std::free(buffer);
  std::fflush(file);
}

}  // namespace

// What the driver calls by this name.
extern "C" int InitializeInjection() {
  const char* name = std::getenv("KERNEL_TRACE");
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string path = std::string(name != nullptr ? name : "kernel_trace") + "." +
                           (rank != nullptr ? rank : "0") + ".csv";
  file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return 0;
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
  if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
  std::atexit([] { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); });
  return 1;
}
