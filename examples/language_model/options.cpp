#include "options.hpp"

#include <boost/program_options.hpp>
#include <iostream>
#include <sstream>

namespace language_model {
namespace {

namespace po = boost::program_options;

po::options_description model_options(Options& o) {
  po::options_description group("Text and model");
  auto add = group.add_options();
  add("text", po::value(&o.text)->default_value(LANGUAGE_MODEL_TEXT), "lines \"Ge1:1 In the ...\"");
  add("held-out-every", po::value(&o.held_out_every)->default_value(16),
      "every n-th chapter is held out");
  add("context", po::value(&o.context)->default_value(6), "words that a prediction sees");
  add("width", po::value(&o.width)->default_value(96), "of the embedding and the head");
  add("hidden", po::value(&o.hidden)->default_value(256), "units of a hidden layer");
  add("layers", po::value(&o.layers)->default_value(1), "hidden layers");
  add("seed", po::value(&o.seed)->default_value(1), "of the parameters and the batches");
  return group;
}

po::options_description training_options(Options& o) {
  po::options_description group("Training");
  auto add = group.add_options();
  add("steps", po::value(&o.steps)->default_value(0), "how many; 0: as --seconds allow");
  add("stop-after", po::value(&o.stop_after)->default_value(0),
      "step at which to stop before the schedule is through; 0: none");
  add("seconds", po::value(&o.seconds)->default_value(60), "how long, where --steps is 0");
  add("batch", po::value(&o.batch)->default_value(16), "sequences of a step (--fsdp: of a rank)");
  add("length", po::value(&o.length)->default_value(32), "words of a sequence");
  add("micro-batches", po::value(&o.micro_batches)->default_value(1),
      "parts in which a step's gradient is accumulated");
  add("learning-rate", po::value(&o.learning_rate)->default_value(0.012, "0.012"),
      "highest; warms up and decays");
  add("weight-decay", po::value(&o.weight_decay)->default_value(0.01, "0.01"), "of AdamW");
  add("evaluate-every", po::value(&o.evaluate_every)->default_value(50),
      "steps between two looks at the held-out part");
  return group;
}

po::options_description rank_options(Options& o, std::string& layout, std::string& grid,
                                     std::string& device) {
  po::options_description group("Ranks");
  auto add = group.add_options();
  add("tensor-parallel", po::value(&o.tensor_parallel)->default_value(0),
      "ranks that share one head; the others hold copies, on other data; 0: all ranks");
  add("grid", po::value(&grid)->default_value("contiguous"),
      "contiguous: neighbours share a head; strided: ranks apart");
  add("layout", po::value(&layout)->default_value("replicated"),
      "replicated: the ranks of a head see the same rows; row_sharded: each has its own");
  add("fsdp", po::bool_switch(&o.fsdp),
      "row_sharded over all ranks, each with a --batch of its own");
  add("dense", po::bool_switch(&o.dense), "whole logits without the library, to compare; one rank");
  add("device", po::value(&device)->default_value("cpu"), "cpu or cuda: where the head computes");
  add("chunk-rows", po::value(&o.chunk_rows)->default_value(128),
      "rows of logits that exist at a time; 0: the library's choice");
  add("deadline", po::value(&o.deadline)->default_value(600),
      "seconds that a rank waits for another");
  return group;
}

po::options_description file_options(Options& o) {
  po::options_description group("Files");
  auto add = group.add_options();
  add("save", po::value(&o.save), "checkpoint to write at the end (safetensors)");
  add("resume", po::value(&o.resume), "checkpoint to start from, of any number of ranks");
  add("save-states", po::value(&o.save_states),
      "hidden states, targets and head of held-out words, for `shardloss verify`");
  add("curve", po::value(&o.curve), "loss of every step (CSV)");
  add("progress", po::value(&o.progress)->default_value("auto"),
      "bar, lines, none; auto: a bar on a terminal (mpirun looks like one)");
  add("svg", po::value(&o.svg), "the curve as a picture, by gnuplot; needs --curve");
  add("report", po::value(&o.report), "the closing table");
  add("margin", po::value(&o.margin)->default_value(0),
      "nats that the held-out loss must lie under the unigram entropy, else exit status 1; 0: any");
  add("compare", po::value(&o.compare)->multitoken(),
      "two curves: exit status 1 unless they agree step by step");
  add("tolerance", po::value(&o.tolerance)->default_value(1e-3, "0.001"),
      "largest relative difference of two losses");
  return group;
}

/// True for `on`, false for `off`.
bool choice(const std::string& name, const std::string& value, const char* off, const char* on) {
  if (value == on) return true;
  if (value == off) return false;
  throw UsageError{"--" + name + " " + value + ": " + off + " or " + on + " is known"};
}

void at_least(const char* name, double value, double least) {
  if (value >= least) return;
  std::ostringstream text;
  text << "--" << name << " must be at least " << least << ", not " << value;
  throw UsageError{text.str()};
}

void check(const Options& o, int ranks) {
  at_least("held-out-every", o.held_out_every, 2);
  at_least("steps", static_cast<double>(o.steps), 0);
  at_least("stop-after", static_cast<double>(o.stop_after), 0);
  at_least("seconds", o.seconds, 0);
  at_least("batch", static_cast<double>(o.batch), 1);
  at_least("length", static_cast<double>(o.length), 1);
  at_least("context", static_cast<double>(o.context), 1);
  at_least("width", static_cast<double>(o.width), 2);
  at_least("hidden", static_cast<double>(o.hidden), 1);
  at_least("layers", static_cast<double>(o.layers), 1);
  at_least("micro-batches", static_cast<double>(o.micro_batches), 1);
  at_least("evaluate-every", static_cast<double>(o.evaluate_every), 1);
  at_least("deadline", o.deadline, 0.001);
  if (o.dense && ranks > 1)
    throw UsageError{"--dense runs on one rank, not " + std::to_string(ranks)};
  if (o.dense && o.cuda) throw UsageError{"--dense runs on the CPU"};
  if (o.tensor_parallel < 1 || ranks % o.tensor_parallel != 0)
    throw UsageError{"--tensor-parallel " + std::to_string(o.tensor_parallel) +
                     " does not divide " + std::to_string(ranks) + " ranks"};
  if (o.fsdp && o.tensor_parallel != ranks)
    throw UsageError{"--fsdp shards over all ranks: leave out --tensor-parallel"};
  if (o.progress != "auto" && o.progress != "bar" && o.progress != "lines" && o.progress != "none")
    throw UsageError{"--progress " + o.progress + ": auto, bar, lines or none is known"};
  if (!o.svg.empty() && o.curve.empty()) throw UsageError{"--svg needs --curve"};
  if (!o.compare.empty() && o.compare.size() != 2) throw UsageError{"--compare takes two files"};
}

}  // namespace

bool parse_options(int argc, char** argv, int ranks, bool speaks, Options& options) {
  std::string layout;
  std::string grid;
  std::string device;
  bool layout_given = false;
  po::options_description all("Trains a small language model, its embedding and head sharded");
  all.add_options()("help", "this text");
  all.add(model_options(options)).add(training_options(options));
  all.add(rank_options(options, layout, grid, device)).add(file_options(options));
  try {
    po::variables_map values;
    po::store(po::command_line_parser(argc, argv)
                  .options(all)
                  .positional(po::positional_options_description())
                  .run(),
              values);
    po::notify(values);
    layout_given = !values["layout"].defaulted();
    if (values.count("help") != 0) {
      if (speaks) std::cout << all;
      return false;
    }
  } catch (const po::error& error) {
    throw UsageError{error.what()};
  }
  if (options.fsdp && layout_given && layout == "replicated")
    throw UsageError{"--fsdp gives every rank rows of its own: leave out --layout replicated"};
  options.row_sharded = choice("layout", layout, "replicated", "row_sharded") || options.fsdp;
  options.strided = choice("grid", grid, "contiguous", "strided");
  options.cuda = choice("device", device, "cpu", "cuda");
  if (options.tensor_parallel == 0) options.tensor_parallel = ranks;
  check(options, ranks);
  return true;
}

}  // namespace language_model
