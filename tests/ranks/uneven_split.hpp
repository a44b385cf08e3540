/// \file
/// Rows of a group that are spread as unevenly as a call may bring them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shardloss::test {

/// `rows` rows over `ranks` ranks: none on `hole` (but where it is alone), a few more on each rank
/// after the other, all that is left on the last.
inline std::vector<std::int64_t> uneven_split(std::int64_t rows, int ranks, int hole) {
  std::vector<std::int64_t> split(static_cast<std::size_t>(ranks), 0);
  const int last = ranks > 1 && hole == ranks - 1 ? ranks - 2 : ranks - 1;
  for (int r = 0; r < last; ++r) {
    if (r == hole) continue;
    const std::int64_t own = std::min<std::int64_t>(rows, 2 + r);
    split[static_cast<std::size_t>(r)] = own;
    rows -= own;
  }
  split[static_cast<std::size_t>(last)] += rows;
  return split;
}

}  // namespace shardloss::test
