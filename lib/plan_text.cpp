// A plan as a table for people.
#include <algorithm>
#include <cstdio>
#include <string>

#include "shardloss/plan.hpp"

namespace shardloss {
namespace {

template <class... Values>
void line(std::string& out, const char* format, Values... values) {
  char text[1024];
  std::snprintf(text, sizeof text, format, values...);
  out += text;
  out += '\n';
}

double mebibytes(double bytes) { return bytes / (1024.0 * 1024.0); }

}  // namespace

std::string to_string(const Plan& plan) {
  std::string out;
  line(out, "rank %d of %d on %s", plan.rank, plan.ranks, std::string(name(plan.device)).c_str());
  line(out, "shard          rows [%lld, %lld) of the weight, %lld of them true vocabulary",
       static_cast<long long>(plan.shard.first),
       static_cast<long long>(plan.shard.first + plan.shard.width),
       static_cast<long long>(plan.shard.vocab));
  line(out, "chunks         %lld of %lld rows, %d at a time; logits in %s",
       static_cast<long long>(plan.chunks), static_cast<long long>(plan.chunk_rows), plan.slots,
       std::string(name(plan.logits_dtype)).c_str());
  line(out, "operations     %.4g forward_backward, %.4g forward, %.4g backward",
       plan.forward_backward_flops, plan.forward_flops, plan.backward_flops);
  line(out, "workspace      %.2f MiB", mebibytes(static_cast<double>(plan.workspace_bytes)));
  for (const PlannedBuffer& buffer : plan.buffers) {
    line(out, "  %-32s %12.3f MiB", buffer.name.c_str(),
         mebibytes(static_cast<double>(buffer.bytes)));
  }
  line(out, "saved          %.2f MiB, logits of %lld rows kept",
       mebibytes(static_cast<double>(plan.saved_bytes)), static_cast<long long>(plan.kept_rows));
  out += "products of a chunk\n";
  for (const PlannedGemm& gemm : plan.gemms) {
    line(out, "  %-12s %lld x %lld x %lld  %s", gemm.name.c_str(), static_cast<long long>(gemm.m),
         static_cast<long long>(gemm.n), static_cast<long long>(gemm.k), gemm.algorithm.c_str());
  }
  if (!plan.collectives.empty())
    out +=
        "collectives of a pass of max_rows rows (bytes this rank contributes; row_sharded: of rows "
        "spread evenly)\n";
  for (const PlannedCollective& item : plan.collectives) {
    line(out, "  %-16s %-12s %-14s %6lld calls %14lld bytes  = %s", item.way.c_str(),
         item.name.c_str(), item.kind.c_str(), static_cast<long long>(item.calls),
         static_cast<long long>(item.bytes), item.formula.c_str());
  }
  return out;
}

}  // namespace shardloss
