/// \file
/// Whether what is asked for can be held, before it is made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "options.hpp"
#include "source.hpp"

namespace shardloss::launch {

/// A sum of sizes that ends at INT64_MAX.
class Bytes {
 public:
  void add(std::int64_t rows, std::int64_t columns, std::size_t element);
  std::int64_t total() const { return total_; }

 private:
  std::int64_t total_ = 0;
};

/// Throws Error(out_of_memory) where `bytes` is more than this machine's memory.
void check_memory(const Bytes& bytes);

/// The same for what a rank's inputs and results take. Without a source, the inputs are made up
/// from the options; those of files are mapped and not counted.
void check_memory(const Options& options, const Problem& problem, const Source* source, int rank,
                  int ranks);

}  // namespace shardloss::launch
