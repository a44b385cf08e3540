/// \file
/// One rank's tensors of a sample on the device under test, and the calls that use them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "device_tensors.hpp"
#include "sample.hpp"
#include "shardloss/loss.hpp"

namespace shardloss::test {

/// How the tensors lie in memory, and what is asked for.
struct Style {
  DType target_dtype = DType::int64;
  std::int64_t target_stride = 1;
  std::int64_t pad = 0;           ///< elements between the rows of matrices
  std::int64_t value_stride = 1;  ///< of per-row inputs and outputs
  bool expand = false;            ///< scalar upstreams as vectors of stride 0
  bool accumulate = false;        ///< into gradients that hold small numbers already
  bool outputs = true;            ///< everything the problem can give beside gradients
  bool argmax = true;             ///< argmax and correct among it
  bool grad_hidden = true;
  bool grad_weight = true;  ///< and the bias gradient, where there is a bias
};

/// Everything but argmax and correct: what a forward_backward of one GPU makes in one kernel.
inline Style without_argmax() {
  Style style;
  style.argmax = false;
  return style;
}

enum class Way { fused, two_step };

/// The tensors. Outputs are poisoned: what a call leaves alone shows.
class Tensors {
 public:
  Tensors(const Sample& sample, int rank, int ranks, Device device, const Style& style = {});

  Inputs inputs() const;
  Upstreams upstreams() const;
  Outputs outputs() const;
  Gradients gradients() const;

  /// Poisons outputs and gradients again, or refills those that are accumulated into.
  void reset();
  /// Replaces the upstream of the loss by a scalar.
  void set_upstream(double value);

  /// What this rank got: its slice of the gradients and per-row outputs.
  Answer answer() const;
  /// The bytes of all that the group must agree on bitwise; of everything.
  std::vector<std::byte> replicated_bytes() const;
  std::vector<std::byte> all_bytes() const;
  /// The name of a tensor that was written outside its elements; empty: none.
  std::string overwritten() const;

  // The arrays, for tests that bend a call.
  DeviceArray hidden, weight, bias, targets, soft_targets, token_weights, class_weights, normalizer,
      row_index;
  DeviceArray up_loss, up_lse, up_logprob, up_entropy;
  DeviceArray loss, row_loss, lse, target_logprob, entropy, argmax, correct, counted_rows,
      cross_entropy, z_loss;
  DeviceArray grad_hidden, grad_weight, grad_bias;

 private:
  void place_inputs(const Sample& sample, int rank);
  void place_row_values(const Sample& sample, int rank);
  void place_outputs(const Sample& sample);
  void place_gradients(const Sample& sample);
  DeviceArray per_row(const std::vector<double>& values, int rank, const Sample& sample);
  ConstTensor upstream(const DeviceArray& array) const;

  Problem problem_;
  Shard shard_;
  Style style_;
  Device device_;
  std::int64_t rows_ = 0;  // this rank's
  std::vector<std::int64_t> rows_per_rank_;
};

/// Runs the whole sample one way on a Loss that is already made.
void run(const Loss& loss, const Tensors& tensors, Way way);

/// Gathers the answers of all ranks into a whole one.
Answer whole(const Sample& sample, const Answer& mine, int ranks);
/// The same over the ranks of `group`, which may be a part of the job.
Answer whole(const Sample& sample, const Answer& mine, const Communicator& group);

/// Compares a whole answer with the reference; empty where it fits, else the worst elements, where
/// they are, and their share of what is allowed.
std::string differences(const Sample& sample, const Answer& answer, const Plan& plan);

/// Compares two whole answers to one sample with each other; empty where they differ by no more
/// than `times` what either may be off.
std::string disagreements(const Sample& sample, const Answer& got, const Answer& want,
                          const Plan& plan, double times);

/// Makes the Loss, runs, gathers, compares, checks the guards: everything at once, in the numbering
/// of the group. Empty: it fits.
std::string check(const Sample& sample, const Communicator& communicator, Way way,
                  const Style& style = {});

}  // namespace shardloss::test
