#include "memory.hpp"

#include <unistd.h>

#include "shardloss/error.hpp"
#include "share.hpp"

namespace shardloss::launch {
namespace {

/// Memory of this machine; 0 where that is not known.
std::int64_t physical_bytes() {
  Bytes bytes;
  bytes.add(sysconf(_SC_PHYS_PAGES), sysconf(_SC_PAGESIZE), 1);
  return bytes.total();
}

void add_gradients(const Problem& p, std::int64_t rows, std::int64_t width, Bytes& bytes) {
  if (p.grad_hidden != GradDType::none)
    bytes.add(rows, p.hidden, size_of(grad_dtype(p.grad_hidden, p.dtype)));
  if (p.grad_weight != GradDType::none)
    bytes.add(width, p.hidden, size_of(grad_dtype(p.grad_weight, p.dtype)));
}

/// Made-up inputs of a rank with so many rows of all.
void add_inputs(const Options& o, const Problem& p, std::int64_t rows, std::int64_t width,
                Bytes& bytes) {
  const std::size_t element = size_of(p.dtype), real = size_of(real_of(p));
  bytes.add(rows, p.hidden, element);
  bytes.add(width, p.hidden, element);
  if (p.bias) bytes.add(width, 1, element);
  if (p.soft_targets)
    bytes.add(o.rows, width, real);
  else
    bytes.add(rows, 1, size_of(DType::int64));
  if (p.class_weights) bytes.add(p.vocab, 1, real);
  for (const TensorOption* one :
       {&o.token_weights, &o.upstream_lse, &o.upstream_logprob, &o.upstream_entropy})
    if (one->given()) bytes.add(rows, 1, real);
  if (!o.accumulate_into.empty()) add_gradients(p, rows, width, bytes);
}

/// The results that every problem has, and the gradients.
void add_results(const Problem& p, std::int64_t rows, std::int64_t width, Bytes& bytes) {
  bytes.add(rows, 1, size_of(real_of(p)));
  add_gradients(p, rows, width, bytes);
}

}  // namespace

void Bytes::add(std::int64_t rows, std::int64_t columns, std::size_t element) {
  std::int64_t part = 0;
  if (rows <= 0 || columns <= 0) return;
  if (__builtin_mul_overflow(rows, columns, &part) ||
      __builtin_mul_overflow(part, static_cast<std::int64_t>(element), &part) ||
      __builtin_add_overflow(total_, part, &total_))
    total_ = INT64_MAX;
}

void check_memory(const Bytes& bytes) {
  const std::int64_t physical = physical_bytes();
  if (physical == 0 || bytes.total() <= physical) return;
  const std::string least = bytes.total() == INT64_MAX ? "at least " : "";
  throw Error(ErrorCode::out_of_memory,
              "found a problem that takes " + least + std::to_string(bytes.total()) +
                  " bytes on a rank, wanted at most the " + std::to_string(physical) +
                  " bytes of this machine's memory");
}

void check_memory(const Options& options, const Problem& problem, const Source* source, int rank,
                  int ranks) {
  const std::int64_t total = source == nullptr ? options.rows : source->shape(Field::hidden)[0];
  const std::int64_t width = make_shards(problem, ranks)[static_cast<std::size_t>(rank)].width;
  std::int64_t rows = total;
  if (problem.layout == Layout::row_sharded)
    rows = split_rows(options, total, ranks)[static_cast<std::size_t>(rank)];
  Bytes bytes;
  if (source == nullptr) add_inputs(options, problem, rows, width, bytes);
  add_results(problem, rows, width, bytes);
  check_memory(bytes);
}

}  // namespace shardloss::launch
