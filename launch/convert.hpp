/// \file
/// Element conversions on the host, rounding to the nearest, ties to even.
#pragma once

#include <cstdint>
#include <vector>

#include "shardloss/tensor.hpp"

namespace shardloss::launch {

/// Converts `count` contiguous elements; neither side need be aligned. Between floating types, or
/// between integers.
void convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count);

/// `value` as it comes back from being stored in a floating `dtype`.
double rounded(double value, DType dtype);

}  // namespace shardloss::launch
