#include "random_problem.hpp"

#include <algorithm>
#include <random>

namespace shardloss::launch {
namespace {

/// Draws, and keeps the words of the command line.
class Draw {
 public:
  Draw(std::uint64_t seed, std::int64_t index)
      : engine_(seed * 1000003 + static_cast<std::uint64_t>(index)) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(values.size()) - 1))];
  }
  void add(const std::string& option, const std::string& value) {
    words.push_back("--" + option);
    words.push_back(value);
  }
  void add(const std::string& option, std::int64_t value) { add(option, std::to_string(value)); }
  /// Adds one of the values, in `percent` of the problems.
  bool maybe(int percent, const std::string& option, const std::vector<std::string>& values) {
    if (!chance(percent)) return false;
    add(option, one_of(values));
    return true;
  }

  std::vector<std::string> words;

 private:
  std::mt19937_64 engine_;
};

/// Parts of `total`, some of them 0.
std::string random_split(Draw& draw, std::int64_t total, int parts) {
  std::vector<std::int64_t> cuts = {0, total};
  for (int i = 1; i < parts; ++i) {
    const bool repeat = draw.chance(30);
    cuts.push_back(repeat ? draw.one_of(cuts) : draw.between(0, total));
  }
  std::sort(cuts.begin(), cuts.end());
  std::string text;
  for (int i = 0; i < parts; ++i)
    text += (i == 0 ? "" : ",") + std::to_string(cuts[static_cast<std::size_t>(i) + 1] -
                                                 cuts[static_cast<std::size_t>(i)]);
  return text;
}

/// Sizes at which tails and emptiness show: 0 rows, 1, primes, 8k + 3.
struct Sizes {
  std::int64_t rows, hidden, vocab, padded;
};

Sizes draw_sizes(Draw& draw) {
  Sizes sizes{};
  sizes.rows = draw.one_of<std::int64_t>({0, 1, 2, 3, 5, 8, 11, 13, 16, 19, 27, 31, 40, 43});
  sizes.hidden = draw.one_of<std::int64_t>({1, 2, 3, 7, 8, 11, 16, 17, 24, 32, 35, 48, 67});
  sizes.vocab = draw.one_of<std::int64_t>(
      {1, 2, 3, 5, 8, 11, 13, 16, 19, 29, 35, 53, 64, 67, 100, 131, 211, 259});
  sizes.padded = sizes.vocab + (draw.chance(30) ? draw.between(1, 9) : 0);
  draw.add("rows", sizes.rows);
  draw.add("hidden", sizes.hidden);
  draw.add("vocab", sizes.vocab);
  draw.add("vocab-padded", sizes.padded);
  return sizes;
}

void draw_objective(Draw& draw, const Sizes& sizes, bool soft) {
  const auto reduction = draw.one_of<std::string>({"mean", "sum", "none"});
  draw.add("reduction", reduction);
  if (!soft) {
    draw.maybe(30, "ignore-index", {"0", std::to_string(sizes.vocab - 1), "-1", "4294967295"});
    draw.maybe(10, "invalid-targets", {"1", "3"});
  }
  if (draw.maybe(40, "label-smoothing", {"0.05", "0.1", "0.4"}) && sizes.vocab > 2)
    draw.maybe(50, "label-smoothing-form", {"megatron", "pytorch"});
  draw.maybe(30, "z-loss", {"1e-4", "0.1"});
  draw.maybe(25, "softcap", {"1.5", "5", "30"});
  draw.maybe(25, "logit-scale", {"0.3", "1.6"});
  draw.maybe(40, "bias", {"random"});
  draw.maybe(40, "token-weights", {"random"});
  draw.maybe(30, "class-weights", {"random"});
  if (reduction == "none")
    draw.maybe(50, "upstream", {"random"});
  else
    draw.maybe(30, "normalizer", {"37", "2.5", "0"});
  if (reduction != "none") draw.maybe(30, "upstream-scale", {"0.5", "-3", "0"});
  draw.maybe(25, "upstream-lse", {"random"});
  draw.maybe(25, "upstream-entropy", {"random"});
  if (!soft) draw.maybe(25, "upstream-logprob", {"random"});
}

void draw_way(Draw& draw, const Sizes& sizes, int ranks, DeviceKind device, bool soft) {
  const bool sharded = draw.chance(40);
  draw.add("layout", sharded ? "row_sharded" : "replicated");
  if (sharded && draw.chance(60)) draw.add("row-split", random_split(draw, sizes.rows, ranks));
  if (draw.chance(60)) draw.add("shards", random_split(draw, sizes.padded, ranks));
  if (!(sharded && soft)) draw.maybe(20, "row-index", {"random"});
  if (draw.chance(50)) {
    draw.add("way", "two_step");
    if (draw.chance(40)) draw.add("keep-logits", draw.between(0, sizes.rows + 3));
  }
  // The plan's matrix product workspace, which no limit can be without.
  const std::int64_t library_bytes = device == DeviceKind::cuda ? std::int64_t{32} << 20 : 0;
  switch (draw.between(0, 5)) {
    case 0: draw.add("chunking", draw.one_of<std::string>({"auto", "aspect_ratio:1"})); break;
    case 1: draw.add("workspace-limit", draw.between(1 << 20, 1 << 21) + library_bytes); break;
    default: draw.add("chunk-rows", draw.between(1, sizes.rows + 2));
  }
  draw.maybe(60, "accumulation", {"accurate", "balanced", "compact"});
  std::vector<std::string> dtypes = {"float32", "bfloat16", "float16"};
  if (device == DeviceKind::cpu) dtypes.push_back("float64");
  draw.add("compute-dtype", draw.one_of(dtypes));
  draw.maybe(40, "grad-dtype", {"float32"});
  draw.maybe(8, "grad-hidden-dtype", {"none"});
  draw.maybe(8, "grad-weight-dtype", {"none"});
  draw.maybe(25, "accumulate-into", {"random"});
}

}  // namespace

std::vector<std::string> random_problem(std::uint64_t seed, std::int64_t index, int ranks,
                                        DeviceKind device) {
  Draw draw(seed, index);
  const Sizes sizes = draw_sizes(draw);
  const bool soft = draw.chance(20);
  if (soft) draw.add("soft-targets", "random");
  draw_objective(draw, sizes, soft);
  draw_way(draw, sizes, ranks, device, soft);
  draw.add("seed", draw.between(1, 1 << 30));
  if (device == DeviceKind::cuda) draw.add("device", "cuda");
  return draw.words;
}

}  // namespace shardloss::launch
