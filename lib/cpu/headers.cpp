// Headers of calls: what ranks must agree on, and each rank's own share.
#include "headers.hpp"

#include <cstring>

#include "../agreement.hpp"

namespace shardloss::detail::cpu {

CallHeader& own_header(const Plan& plan, const WorkspaceMap& map, std::byte* workspace, int slot) {
  auto* segments = map.in<std::byte>(workspace, Buffer::exchange, slot);
  return *reinterpret_cast<CallHeader*>(segments + plan.rank * map.exchange_bytes);
}

std::vector<CallHeader> agreed_headers(const Plan& plan, const WorkspaceMap& map,
                                       Transport& transport, std::byte* workspace, int slot) {
  std::vector<CallHeader> headers(static_cast<std::size_t>(plan.ranks));
  const auto* segment = map.in<std::byte>(workspace, Buffer::exchange, slot);
  for (CallHeader& header : headers) {
    std::memcpy(&header, segment, sizeof header);
    segment += map.exchange_bytes;
  }
  if (const std::optional<Error> error = disagreement(headers)) {
    if (error->fatal()) throw transport.fail(*error);
    throw *error;
  }
  return headers;
}

std::optional<Error> invalid_target(std::span<const CallHeader> headers, std::int64_t vocab) {
  const CallHeader* first = nullptr;
  for (const CallHeader& header : headers) {
    if (header.invalid == 0) continue;
    if (first == nullptr || header.invalid_row < first->invalid_row) first = &header;
  }
  if (first == nullptr) return std::nullopt;
  return invalid_id(first->invalid_row, first->invalid_value, vocab);
}

}  // namespace shardloss::detail::cpu
