#include "option_descriptions.hpp"

#include <sstream>

namespace shardloss::launch {
namespace {

/// Every value is taken as text and read by option_values.hpp, whose messages say what was wanted.
void add(po::options_description& group, const char* name, const char* value, const char* help) {
  if (value == nullptr)
    group.add_options()(name, po::bool_switch(), help);
  else
    group.add_options()(name, po::value<std::string>()->value_name(value), help);
}

po::options_description input_options(Command command) {
  po::options_description group(
      command == Command::run
          ? "Inputs: FILE:NAME, a tensor of a safetensors file or of a shard index (.json)"
          : "Inputs: FILE:NAME, or `random` for made-up data (then --hidden is a number)");
  add(group, "hidden", command == Command::run ? "F:NAME" : "F:NAME|D",
      "hidden states [N, D]; made up: D");
  add(group, "weight", "F:NAME", "weight [vocab_padded, D]; each rank reads its own rows");
  add(group, "targets", "F:NAME", "targets [N], int32 or int64");
  add(group, "soft-targets", "F:NAME", "probabilities [N, vocab_padded] in place of targets");
  add(group, "bias", "F:NAME", "bias [vocab_padded]");
  add(group, "token-weights", "F:NAME", "weight of each row's loss [N]");
  add(group, "class-weights", "F:NAME", "weight of each class [vocab]");
  add(group, "row-index", "F:NAME", "compute these rows only: [n], int32 or int64");
  add(group, "upstream", "F:NAME", "upstream gradient of the loss, [N] or one value");
  add(group, "upstream-scale", "g", "the same, a number");
  add(group, "upstream-lse", "F:NAME", "upstream gradient of lse, [N] or one value");
  add(group, "upstream-logprob", "F:NAME", "... of target_logprob");
  add(group, "upstream-entropy", "F:NAME", "... of the entropy");
  add(group, "normalizer", "x",
      "divides the sum of the row losses, 1e-30 to 1e30 in magnitude; 0: loss and gradients are 0");
  if (command == Command::run) return group;
  add(group, "rows", "N", "made up: token rows (64)");
  add(group, "seed", "S", "made up: seed (1)");
  add(group, "invalid-targets", "COUNT", "made up: targets outside the vocabulary (0)");
  add(group, "vocab-padded", "V", "made up: rows of the weight (vocab)");
  return group;
}

po::options_description objective_options() {
  po::options_description group("Objective");
  add(group, "vocab", "V", "true vocabulary (rows of the weight)");
  add(group, "reduction", "R", "mean, sum or none (mean)");
  add(group, "ignore-index", "y", "rows with this target count nowhere (-100)");
  add(group, "label-smoothing", "a", "(0)");
  add(group, "label-smoothing-form", "FORM", "pytorch or megatron (pytorch)");
  add(group, "z-loss", "k", "adds k lse^2 to each row's loss (0)");
  add(group, "softcap", "c", "logits become c tanh(logit / c); 0: none (0)");
  add(group, "logit-scale", "s", "multiplies the logits first (1)");
  return group;
}

po::options_description way_options(Command command) {
  po::options_description group("How");
  add(group, "layout", "L", "replicated or row_sharded (replicated)");
  if (command != Command::plan)
    add(group, "row-split", "N0,N1,...", "row_sharded: rows of each rank (as even as can be)");
  add(group, "shards", "V0,V1,...", "rows of the weight on each rank (as even as can be)");
  add(group, "way", "W", "fused or two_step (fused)");
  add(group, "keep-logits", "ROWS", "two_step: rows whose logits are kept for backward (0)");
  add(group, "chunk-rows", "C", "rows of a chunk");
  add(group, "workspace-limit", "BYTES", "the most rows that fit in so much workspace");
  add(group, "chunking", "RULE", "auto or aspect_ratio:k (auto)");
  add(group, "accumulation", "A", "accurate, balanced or compact (balanced)");
  add(group, "compute-dtype", "T",
      "float64, float32, bfloat16 or float16; inputs are rounded to it (that of hidden)");
  add(group, "grad-dtype", "T", "gradients in float32, or the same as the inputs (same)");
  add(group, "grad-hidden-dtype", "T", "of the hidden gradient alone; none: not computed");
  add(group, "grad-weight-dtype", "T", "of the weight and bias gradients alone; none likewise");
  return group;
}

po::options_description timed_pass_options() {
  po::options_description group("What a timed pass is");
  add(group, "outputs", "O",
      "training: the loss, lse and what has an upstream gradient; or all (training)");
  add(group, "tune", nullptr, "CUDA: choose product algorithms by timing, keep them in a cache");
  return group;
}

po::options_description command_options(Command command) {
  po::options_description group("Command");
  add(group, "device", "D", "cpu, or cuda with one rank a GPU (cpu)");
  add(group, "deadline", "SECONDS", "how long a rank waits for another (600)");
  if (command == Command::run)
    add(group, "out", "F", "safetensors file with the outputs and gradients");
  if (command == Command::run || command == Command::verify)
    add(group, "accumulate-into", "F",
        "its grad_hidden, grad_weight, grad_bias are added to (verify: or `random`)");
  if (command != Command::plan) add(group, "report", "F", "JSON report");
  if (command == Command::verify) {
    add(group, "random", "COUNT",
        "so many random problems, every option of them drawn from --seed");
    add(group, "repeat", "COUNT",
        "calls whose results must be equal bit by bit (8; of random problems 2)");
  }
  if (command == Command::plan) {
    add(group, "ranks", "P", "ranks of the group (1)");
    add(group, "rank", "r", "whose plan (0)");
    add(group, "json", nullptr, "as JSON");
  }
  if (command == Command::bench) {
    add(group, "problem", "N8192_D4096_V128256_tp2_bf16_C2048",
        "what to time, in place of --rows, --hidden and --vocab; several separated by commas; "
        "a dtype or chunk rows in it go before --compute-dtype and --chunk-rows");
    group.add_options()("variant",
                        po::value<std::vector<std::string>>()->composing()->value_name("OPTIONS"),
                        "one more pass, with these options changed (\"--layout row_sharded\") but "
                        "no size, timed by turns "
                        "with the first; may be given several times");
    add(group, "warmup", "COUNT", "passes that are not timed (2)");
    add(group, "iterations", "COUNT", "passes that are (10)");
    add(group, "check-rows", "COUNT", "rows held against the reference; 0: not checked (6)");
    add(group, "delay", "MS", "every collective arrives so much later, at most 60000 (0)");
    add(group, "sweep", "C0,C1,...", "each problem at these chunk rows");
    add(group, "svg", "F", "time against memory of the sweep, drawn by gnuplot");
    add(group, "dense", nullptr, "CPU: the way that holds all logits, for comparison");
    add(group, "alone", nullptr,
        "CUDA, several ranks: also the whole problem on the first one's GPU, timed by turns; "
        "that GPU holds it beside its shard");
  }
  add(group, "config", "F", "more options, one `name = value` a line");
  group.add_options()("help", po::bool_switch(), "this text");
  return group;
}

}  // namespace

po::options_description all_options(Command command) {
  po::options_description all(po::options_description::m_default_line_length + 20);
  all.add(input_options(command)).add(objective_options()).add(way_options(command));
  if (command == Command::bench) all.add(timed_pass_options());
  all.add(command_options(command));
  return all;
}

po::options_description pass_options() {
  po::options_description all;
  all.add(input_options(Command::bench))
      .add(objective_options())
      .add(way_options(Command::bench))
      .add(timed_pass_options());
  return all;
}

std::string help_text(Command command) {
  static const char* const usage[] = {
      "shardloss run --hidden F:NAME --weight F:NAME --targets F:NAME --out F [options]\n"
      "Computes the loss and gradients of tensors in safetensors files, alone or under mpirun.\n"
      "Exit status 0; 1: computed, but some target is outside the vocabulary; 2: the inputs or\n"
      "options do not fit, nothing is written; 3: a rank was lost.\n",
      "shardloss verify [options]\n"
      "Computes on the given ranks and in unsharded fp64, and prints each output's worst error as "
      "a\n"
      "share of what is allowed. Exit status 1 past it.\n",
      "shardloss plan --rows N --hidden D --vocab V --ranks P [options]\n"
      "Prints what a rank would do and hold, without data or GPU.\n",
      "shardloss bench --problem P [options]\n"
      "Times the pass against its matrix products alone, in one process, alternating.\n"};
  std::ostringstream text;
  text << usage[static_cast<int>(command)] << '\n' << all_options(command);
  return text.str();
}

std::string overview() {
  return "shardloss COMMAND [options]: the language-model head and its cross-entropy, sharded over "
         "the vocabulary\n"
         "  run     loss and gradients of tensors in files\n"
         "  verify  the same against an unsharded fp64 reference\n"
         "  plan    buffers, operations and messages, without data\n"
         "  bench   time and memory\n"
         "Each has --help. Under mpirun the ranks share the vocabulary.\n";
}

}  // namespace shardloss::launch
