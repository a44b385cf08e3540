/// \file
/// What every step of a pass looks at: the problem, its plan, and where things lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../call.hpp"
#include "../objective.hpp"
#include "../workspace.hpp"
#include "access.hpp"
#include "products.hpp"
#include "scalars.hpp"
#include "shardloss/communicator.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"

namespace shardloss::detail::cpu {

/// `Real` is what everything is computed in: double for float64 problems, else float.
template <class Real>
struct Context {
  const Problem problem;
  const Plan plan;
  const WorkspaceMap map;
  Transport& transport;
  const Objective<Real> objective;

  template <class T>
  T* buffer(std::byte* workspace, Buffer which, int slot = 0) const {
    return map.template in<T>(workspace, which, slot);
  }
  Scalars& scalars(const Call& call) const {
    return *buffer<Scalars>(call.workspace, Buffer::scalars);
  }
  RowInput<Real>* inputs(const Call& call, const Chunk& chunk) const {
    return buffer<RowInput<Real>>(call.workspace, Buffer::row_inputs, chunk.slot);
  }
  RowCoefficients<Real>* coefficients(const Call& call, const Chunk& chunk) const {
    return buffer<RowCoefficients<Real>>(call.workspace, Buffer::coefficients, chunk.slot);
  }
  /// The chunk's coefficients times this are the true ones.
  double& chunk_scale(const Call& call, const Chunk& chunk) const {
    return scalars(call).chunk_scale.at(static_cast<std::size_t>(chunk.slot));
  }

  /// Of each of a chunk's rows.
  RowLoss* row_losses(const Call& call) const {
    return buffer<RowLoss>(call.workspace, Buffer::row_scratch);
  }

  ReductionFactor factor(const Call& call) const {
    return reduction_factor(problem.reduction, static_cast<const Real*>(call.in->normalizer.data()),
                            scalars(call).denominator);
  }

  bool gathers() const { return gathers_rows(problem, plan); }
  /// Whether dW gathers in a float32 buffer, to be rounded when the call ends.
  bool accumulates_weight(const Call& call) const {
    return map.has(Buffer::grad_weight) && call.chunks.size() > 1;
  }
};

/// The caller's row of one of this rank's computed rows.
inline std::int64_t source_row(const Call& call, std::int64_t computed) {
  return call.in->row_index.given() ? read<std::int64_t>(call.in->row_index, computed) : computed;
}

}  // namespace shardloss::detail::cpu
