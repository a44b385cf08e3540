#include "gather.hpp"

#include <algorithm>
#include <cstring>

#include "convert.hpp"

namespace shardloss::launch {
namespace {

constexpr std::size_t piece_bytes = 1 << 20;

/// FNV-1a over 64-bit words and the bytes behind them.
std::uint64_t mix(std::uint64_t hash, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, from += 8) {
    std::uint64_t word;
    std::memcpy(&word, from, 8);
    hash = (hash ^ word) * 0x100000001b3ULL;
    hash ^= hash >> 29;
  }
  for (; bytes > 0; --bytes, ++from) hash = (hash ^ *from) * 0x100000001b3ULL;
  return hash;
}

std::uint64_t hash_of(const HostArray& array) {
  return mix(0xcbf29ce484222325ULL, array.data(), array.bytes());
}

/// Where an output goes; gradients are doubles too, argmax and counts integers.
std::vector<double>* real_slot(Answer& answer, const std::string& name) {
  if (name == "loss") return &answer.loss;
  if (name == "row_loss") return &answer.row_loss;
  if (name == "lse") return &answer.lse;
  if (name == "target_logprob") return &answer.target_logprob;
  if (name == "entropy") return &answer.entropy;
  if (name == "cross_entropy") return &answer.cross_entropy;
  if (name == "z_loss") return &answer.z_loss;
  if (name == "grad_hidden") return &answer.grad_hidden;
  if (name == "grad_weight") return &answer.grad_weight;
  if (name == "grad_bias") return &answer.grad_bias;
  if (name == "before_hidden") return &answer.before_hidden;
  if (name == "before_weight") return &answer.before_weight;
  if (name == "before_bias") return &answer.before_bias;
  return nullptr;
}

std::vector<std::int64_t>* integer_slot(Answer& answer, const std::string& name) {
  if (name == "argmax") return &answer.argmax;
  if (name == "correct") return &answer.correct;
  return &answer.counted_rows;
}

/// Elements of an array that this rank contributes.
struct Part {
  std::string name;
  const HostArray* array;
  std::int64_t count;
};

/// Everything that goes into an answer, in the same order on every rank.
std::vector<Part> parts_of(const std::vector<Piece>& pieces, const Share& share) {
  std::vector<Part> out;
  for (const Piece& piece : pieces) out.push_back({piece.name, piece.array, piece.count});
  const auto before = [&](const char* name, const HostArray& array, bool mine) {
    if (array.given()) out.push_back({name, &array, mine ? array.elements() : 0});
  };
  // Replicated rows are held by all and contributed by rank 0.
  before("before_hidden", share.before_hidden,
         share.problem.layout == Layout::row_sharded || share.rank == 0);
  before("before_weight", share.before_weight, true);
  before("before_bias", share.before_bias, true);
  return out;
}

/// Appends raw elements to where they belong.
void append(Answer& answer, const Part& part, const std::byte* data, std::int64_t count) {
  const DType dtype = part.array->dtype();
  const auto grow = [&](auto& values, DType as) {
    const std::size_t old = values.size();
    values.resize(old + static_cast<std::size_t>(count));
    convert(data, dtype, values.data() + old, as, count);
  };
  if (auto* reals = real_slot(answer, part.name))
    grow(*reals, DType::float64);
  else
    grow(*integer_slot(answer, part.name), DType::int64);
}

}  // namespace

std::vector<std::byte> gather(const Communicator& host, const void* data, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(host.size());
  std::vector<std::uint64_t> sizes(ranks);
  const std::uint64_t mine = bytes;
  host.transport().exchange_host(&mine, sizes.data(), sizeof mine);
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<std::byte>> all(ranks);
  const std::size_t step = std::min(piece_bytes, longest);
  std::vector<std::byte> piece(step), pieces(step * ranks);
  for (std::size_t first = 0; first < longest; first += step) {
    if (first < bytes)
      std::memcpy(piece.data(), static_cast<const std::byte*>(data) + first,
                  std::min(step, bytes - first));
    host.transport().exchange_host(piece.data(), pieces.data(), step);
    for (std::size_t r = 0; r < ranks && host.rank() == 0; ++r) {
      const std::size_t count =
          first < sizes[r] ? std::min<std::size_t>(step, sizes[r] - first) : 0;
      all[r].insert(all[r].end(), pieces.data() + r * step, pieces.data() + r * step + count);
    }
  }
  std::vector<std::byte> out;
  for (const auto& part : all) out.insert(out.end(), part.begin(), part.end());
  return out;
}

Answer gather_answer(const Communicator& host, const std::vector<Piece>& pieces,
                     const Share& share) {
  const std::vector<Part> parts = parts_of(pieces, share);
  std::vector<std::int64_t> counts;
  std::vector<std::byte> packed;
  for (const Part& part : parts) {
    counts.push_back(part.count);
    const auto* from = static_cast<const std::byte*>(part.array->data());
    packed.insert(packed.end(), from,
                  from + part.count * static_cast<std::int64_t>(size_of(part.array->dtype())));
  }
  std::vector<std::int64_t> all_counts(counts.size() * static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(counts.data(), all_counts.data(),
                                 counts.size() * sizeof counts[0]);
  const std::vector<std::byte> all = gather(host, packed.data(), packed.size());
  Answer answer;
  if (host.rank() != 0) return answer;
  const std::byte* next = all.data();
  for (std::size_t i = 0; i < all_counts.size(); ++i) {
    const Part& part = parts[i % parts.size()];
    append(answer, part, next, all_counts[i]);
    next += all_counts[i] * static_cast<std::int64_t>(size_of(part.array->dtype()));
  }
  return answer;
}

std::string differing_output(const Communicator& host, const std::vector<Piece>& parts) {
  std::vector<std::uint64_t> mine;
  for (const Piece& piece : parts) mine.push_back(piece.replicated ? hash_of(*piece.array) : 0);
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(mine.data(), all.data(), mine.size() * sizeof mine[0]);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != all[i % mine.size()]) return parts[i % mine.size()].name;
  return "";
}

std::uint64_t fingerprint(const std::vector<Piece>& parts) {
  std::uint64_t hash = 0;
  for (const Piece& piece : parts) {
    const std::uint64_t one = hash_of(*piece.array);
    hash = mix(hash, &one, sizeof one);
  }
  return hash;
}

}  // namespace shardloss::launch
