// That ranks agree, at construction and in calls.
#include "agreement.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "number.hpp"

namespace shardloss {
namespace detail {
namespace {

constexpr std::uint64_t handshake_magic = 0x53686172644c6f73;  // "ShardLos"
constexpr std::uint64_t handshake_version = 2;
constexpr std::size_t listed_widths = 64;

// One field of the handshake: its name, and how its 64 bits are to be printed.
struct Field {
  const char* name;
  enum Kind { integer, real, hexadecimal } kind;
  std::uint64_t word;
};

template <class T>
Field field(const char* name, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return {name, Field::real, std::bit_cast<std::uint64_t>(static_cast<double>(value))};
  } else {
    return {name, Field::integer, static_cast<std::uint64_t>(static_cast<std::int64_t>(value))};
  }
}

std::string print(Field::Kind kind, std::uint64_t word) {
  char text[40];
  switch (kind) {
    case Field::integer: return std::to_string(static_cast<std::int64_t>(word));
    case Field::real: return number(std::bit_cast<double>(word));
    case Field::hexadecimal:
      std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(word));
      return text;
  }
  return {};
}

std::uint64_t hash(std::span<const std::int64_t> values) {  // FNV-1a over words
  std::uint64_t sum = 0xcbf29ce484222325ULL;
  for (const std::int64_t value : values)
    sum = (sum ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ULL;
  return sum;
}

std::vector<Field> fields_of(const Problem& p, Device device, std::uint64_t what) {
  std::vector<Field> fields = {
      {"object", Field::hexadecimal, what},
      field("device", device.kind),
      field("max_rows", p.max_rows),
      field("hidden", p.hidden),
      field("vocab", p.vocab),
      field("vocab_padded", p.vocab_padded),
      field("number of shard_widths", p.shard_widths.size()),
      field("dtype", p.dtype),
      field("layout", p.layout),
      field("bias", p.bias),
      field("row_index", p.row_index),
      field("reduction", p.reduction),
      field("ignore_index", p.ignore_index),
      field("normalizer", p.normalizer),
      field("logit_scale", p.logit_scale),
      field("softcap", p.softcap),
      field("label_smoothing", p.label_smoothing),
      field("label_smoothing_form", p.label_smoothing_form),
      field("z_loss", p.z_loss),
      field("class_weights", p.class_weights),
      field("soft_targets", p.soft_targets),
      field("entropy", p.entropy),
      field("grad_hidden", p.grad_hidden),
      field("chunking rule", p.chunking.rule),
      field("chunking value", p.chunking.value),
      field("accumulation", p.accumulation),
      field("keep_logits", p.keep_logits),
      field("throw_invalid_target", p.throw_invalid_target),
  };
  return fields;
}

// What a rank sends. grad_weight and gemm are not in it: a frozen shard and another way to choose
// algorithms are each rank's own affair and change no collective.
struct Greeting {
  std::uint64_t magic = handshake_magic;
  std::uint64_t version = handshake_version;
  std::uint64_t object = 0;   // the rank's own number of it
  std::uint64_t verdict = 0;  // 0, or 1 + ErrorCode
  std::array<char, 256> text{};
  std::array<std::uint64_t, 32> words{};
  std::array<std::int64_t, listed_widths> widths{};
  std::uint64_t widths_hash = 0;
};
static_assert(std::is_trivially_copyable_v<Greeting>);

Greeting greet(const std::vector<Field>& fields, const Problem& problem,
               const std::optional<Error>& verdict) {
  Greeting greeting;
  for (std::size_t i = 0; i < fields.size(); ++i) greeting.words.at(i) = fields[i].word;
  const std::size_t listed = std::min(listed_widths, problem.shard_widths.size());
  std::copy_n(problem.shard_widths.begin(), listed, greeting.widths.begin());
  greeting.widths_hash = hash(problem.shard_widths);
  if (verdict) {
    greeting.verdict = 1 + static_cast<std::uint64_t>(verdict->code());
    std::snprintf(greeting.text.data(), greeting.text.size(), "%s", verdict->what());
  }
  return greeting;
}

std::string differ(const std::string& field, const std::string& value, int rank,
                   const std::string& value0) {
  return field + ": rank " + std::to_string(rank) + " has " + value + ", rank 0 has " + value0;
}

void compare(const std::vector<Greeting>& all, const std::vector<Field>& fields) {
  const Greeting& first = all.front();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Greeting& other = all[rank];
    const int r = static_cast<int>(rank);
    if (other.magic != handshake_magic || other.version != handshake_version) {
      throw Error(ErrorCode::mismatch,
                  "rank " + std::to_string(r) + " speaks another version of the handshake");
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (other.words[i] == first.words[i]) continue;
      throw Error(ErrorCode::mismatch, differ(fields[i].name, print(fields[i].kind, other.words[i]),
                                              r, print(fields[i].kind, first.words[i])));
    }
    for (std::size_t i = 0; i < listed_widths; ++i) {
      if (other.widths[i] == first.widths[i]) continue;
      throw Error(ErrorCode::mismatch,
                  differ("shard_widths[" + std::to_string(i) + "]", std::to_string(other.widths[i]),
                         r, std::to_string(first.widths[i])));
    }
    if (other.widths_hash != first.widths_hash) {
      throw Error(ErrorCode::mismatch,
                  differ("shard_widths, as a hash", print(Field::hexadecimal, other.widths_hash), r,
                         print(Field::hexadecimal, first.widths_hash)));
    }
  }
}

// The text of another rank's error behind its code's name.
std::string without_code(const char* text) {
  const std::string full(text);
  const std::size_t colon = full.find(": ");
  return colon == std::string::npos ? full : full.substr(colon + 2);
}

}  // namespace

std::optional<Error> disagreement(std::span<const CallHeader> headers) {
  std::array<std::uint64_t, agreed_words> first{};
  std::memcpy(first.data(), headers.data(), sizeof first);
  for (std::uint32_t word = 0; word < agreed_words; ++word) {
    for (std::uint32_t rank = 0; rank < headers.size(); ++rank) {
      std::array<std::uint64_t, agreed_words> other{};
      std::memcpy(other.data(), &headers[rank], sizeof other);
      const bool gone = word == 0 && other[0] != 0;
      if (other[word] != first[word] || gone)
        return disagreement(word + 1, rank, first[word], other[word]);
    }
  }
  return std::nullopt;
}

Error disagreement(std::uint32_t field, std::uint32_t other_rank, std::uint64_t value,
                   std::uint64_t other_value) {
  if (field == 1) {
    const std::string rank = "rank " + std::to_string(other_value != 0 ? other_rank : 0);
    if (std::max(value, other_value) == given_up)
      return {ErrorCode::peer, rank + " gave the call up", true};
    return {ErrorCode::invalid_argument, rank + " refused the arguments of its call"};
  }
  constexpr std::uint32_t rows = 1 + offsetof(CallHeader, rows) / sizeof(std::uint64_t);
  const bool targets = field == agreed_words;
  const bool row_lists = field == rows && ((value | other_value) & hashed_rows) != 0;
  const Field::Kind kind = targets || row_lists ? Field::hexadecimal : Field::integer;
  const std::string label = row_lists ? "rows_per_rank, as a hash"
                            : targets ? "targets, as a hash"
                                      : agreed_names.at(field - 1);
  return {ErrorCode::mismatch,
          "in a call, " + differ(label, print(kind, other_value), static_cast<int>(other_rank),
                                 print(kind, value)),
          !targets};
}

Error invalid_id(std::int64_t row, std::int64_t id, std::int64_t vocab) {
  return {ErrorCode::invalid_target, "row " + std::to_string(row) + " has the token id " +
                                         std::to_string(id) + ", vocab is " +
                                         std::to_string(vocab)};
}

std::uint64_t handshake(Transport& transport, const char* what, const Problem& problem,
                        Device device, const std::optional<Error>& verdict, std::uint64_t number) {
  std::uint64_t kind = 0;
  for (const char* c = what; *c != '\0'; ++c) kind = kind * 131 + static_cast<unsigned char>(*c);
  const std::vector<Field> fields = fields_of(problem, device, kind);
  Greeting mine = greet(fields, problem, verdict);
  mine.object = number;
  std::vector<Greeting> all(static_cast<std::size_t>(transport.size()));
  transport.exchange_host(&mine, all.data(), sizeof mine);
  compare(all, fields);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].verdict == 0) continue;
    std::string text = without_code(all[rank].text.data());
    if (all.size() > 1) text = "on rank " + std::to_string(rank) + ": " + text;
    throw Error(static_cast<ErrorCode>(all[rank].verdict - 1), text);
  }
  return all.front().object;
}

}  // namespace detail

std::optional<Error> disagreement_in(Mailbox& mailbox) {
  const std::uint32_t field = std::atomic_ref(mailbox.disagreement).load();  // written last
  if (field == 0 || field > detail::agreed_words) return std::nullopt;
  return detail::disagreement(field, std::atomic_ref(mailbox.other_rank).load(),
                              std::atomic_ref(mailbox.value).load(),
                              std::atomic_ref(mailbox.other_value).load());
}

}  // namespace shardloss
