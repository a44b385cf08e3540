/// \file
/// Whether a result too large for the reference is right: some of its rows, and a sum over all.
#pragma once

#include "bench.hpp"
#include "job.hpp"

namespace shardloss::launch {

/// The worst error as a share of what is allowed, the same on every rank; NaN where --check-rows is
/// 0:
/// - lse, other real outputs that were asked for, and hidden gradient of some rows against the
///   reference, which rank 0 computes for those rows over the whole vocabulary;
/// - the weight gradient through sum_v dW_v . w_v = sum_i dX_i . x_i, both being
///   sum_iv du_iv x_i . w_v.
/// Collective.
double check_sample(const Communicator& host, const BenchData& data, const Loss& loss,
                    const Job& job);

}  // namespace shardloss::launch
