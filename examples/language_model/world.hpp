/// \file
/// The ranks of the job and how they divide the work.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <shardloss/communicator.hpp>
#include <span>

#include "batches.hpp"

namespace language_model {

/// Lives as long as main: begins and ends MPI where the trainer was built with it.
class Job {
 public:
  Job(int* argc, char*** argv);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// This rank's number among those of its host: which GPU it takes.
  int local_rank() const { return local_rank_; }
  /// Ends every rank of the job: the others may be waiting for this one.
  [[noreturn]] void abort(int status) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
};

/// The job as a grid: `tensor` groups share one head, `data` groups hold the same shard of it.
struct World {
  shardloss::Communicator all;
  shardloss::Communicator tensor;
  shardloss::Communicator data;
  bool row_sharded = false;  ///< ranks of a tensor group have rows of their own

  bool first() const { return all.rank() == 0; }

  /// This rank's part of a run of sequences, and where row_sharded the parts of its whole group.
  struct Part {
    Share mine;
    std::vector<std::int64_t> of_rank;
  };
  Part part_of(Share sequences) const;
};

/// `tensor_parallel` must divide the size of the job; neighbours form a group, or with `strided`
/// ranks that lie size / tensor_parallel apart.
World make_world(const Job& job, int tensor_parallel, bool strided, bool row_sharded,
                 std::chrono::milliseconds deadline);

/// Sums over the group in place, the same bits on every rank.
void sum_over(const shardloss::Communicator& group, std::span<float> values);
void sum_over(const shardloss::Communicator& group, std::span<double> values);

/// Returns when every rank of the group is here.
void barrier(const shardloss::Communicator& group);

/// The first rank's value, on every rank.
double from_first(const shardloss::Communicator& group, double value);

}  // namespace language_model
