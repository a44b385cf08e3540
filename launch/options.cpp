#include "options.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "option_descriptions.hpp"
#include "printable.hpp"

namespace shardloss::launch {
namespace {

/// The options that are heeded beside --random, which draws all others.
constexpr std::string_view beside_random[] = {"seed", "repeat", "device", "deadline", "config"};

constexpr const char* size_options[] = {"rows", "hidden", "vocab", "vocab-padded"};

/// Stores what the words say in `map`.
void store(const std::vector<std::string>& words, const po::options_description& description,
           po::variables_map& map) {
  // Long options only: "-100" is a value.
  const int style = po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                    po::command_line_style::long_allow_adjacent;
  const auto parsed = po::command_line_parser(words).options(description).style(style).run();
  for (const auto& option : parsed.options)
    if (option.string_key.empty())
      throw Error(ErrorCode::invalid_argument,
                  "found " + files::printable(option.value.empty() ? "" : option.value[0]) +
                      ", wanted an option");
  po::store(parsed, map);
}

po::variables_map read(Command command, int argc, const char* const* argv) {
  const po::options_description description = all_options(command);
  po::variables_map map;
  store({argv + std::min(argc, 2), argv + argc}, description, map);
  if (map.count("config") != 0) {
    const auto path = map["config"].as<std::string>();
    std::ifstream file(path);
    if (!file || std::filesystem::is_directory(path)) refuse("config", path, "a readable file");
    po::store(po::parse_config_file(file, description), map);
  }
  return map;
}

/// What does not fit the descriptions; `wanted` in place of an option that is not among them.
[[noreturn]] void refuse_syntax(const std::string& where, const po::error& error,
                                const std::string& wanted) {
  std::string text = files::on_one_line(error.what());
  if (const auto* unknown = dynamic_cast<const po::unknown_option*>(&error))
    text =
        "found the option " + files::printable(unknown->get_option_name()) + ", wanted " + wanted;
  throw Error(ErrorCode::invalid_argument, where + text);
}

void check_beside_random(const po::variables_map& map) {
  const auto other = std::ranges::find_if(map, [](const auto& option) {
    const auto& [name, value] = option;
    return name != "random" && !value.defaulted() && std::ranges::count(beside_random, name) == 0;
  });
  if (other == map.end()) return;
  std::string heeded;
  for (const std::string_view name : beside_random)
    heeded += (heeded.empty() ? "--" : ", --") + std::string(name);
  throw Error(ErrorCode::invalid_argument,
              "found --random and --" + other->first + ", wanted beside --random only " + heeded);
}

/// Hands each value that was given to its reader.
class Values {
 public:
  explicit Values(const po::variables_map& map) : map_(map) {}

  template <class Use>
  void with(const std::string& name, Use use) const {
    if (map_.count(name) != 0) use(map_[name].as<std::string>());
  }
  void text(const std::string& name, std::string& to) const {
    with(name, [&](const std::string& value) { to = value; });
  }
  void texts(const std::string& name, std::vector<std::string>& to) const {
    if (map_.count(name) != 0) to = map_[name].as<std::vector<std::string>>();
  }
  template <class T>
  void integer(const std::string& name, std::int64_t least, T& to) const {
    constexpr auto most = std::numeric_limits<T>::max();
    constexpr std::int64_t last =
        std::in_range<std::int64_t>(most) ? static_cast<std::int64_t>(most) : INT64_MAX;
    with(name, [&](const std::string& value) {
      to = static_cast<T>(parse_integer(name, value, least, last));
    });
  }
  template <class T>
  void number(const std::string& name, T& to) const {
    with(name, [&](const std::string& value) { to = parse_number(name, value); });
  }
  template <class T>
  void choice(const std::string& name, T& to,
              const std::vector<std::pair<std::string, T>>& choices) const {
    with(name, [&](const std::string& value) { to = parse_choice(name, value, choices); });
  }
  void list(const std::string& name, std::vector<std::int64_t>& to) const {
    with(name, [&](const std::string& value) { to = parse_list(name, value); });
  }
  void tensor(const std::string& name, bool random_allowed, TensorOption& to) const {
    with(name, [&](const std::string& value) { to = parse_tensor(name, value, random_allowed); });
  }
  bool flag(const std::string& name) const { return map_.count(name) && map_[name].as<bool>(); }

 private:
  const po::variables_map& map_;
};

/// A number that multiplies or divides, in float32 mostly, which is to hold it and its inverse.
void take_factor(const Values& values, const char* name, std::optional<double>& factor) {
  values.number(name, factor);
  values.with(name, [&](const std::string& text) {
    const double magnitude = std::abs(*factor);
    if (magnitude != 0 && (magnitude < 1e-30 || magnitude > 1e30))
      refuse(name, text, "0 or 1e-30 .. 1e30 in magnitude");
  });
}

void take_inputs(const Values& values, Options& out) {
  const bool random = out.command != Command::run;
  values.with("hidden", [&](const std::string& text) {
    if (!random || text.find(':') != std::string::npos) {
      out.hidden = parse_tensor("hidden", text, false);
    } else {
      out.hidden.kind = TensorOption::Kind::random;
      out.hidden.option = "hidden";
      out.hidden_size = parse_integer("hidden", text, 1);
    }
  });
  values.tensor("weight", random, out.weight);
  values.tensor("targets", random, out.targets);
  values.tensor("soft-targets", random, out.soft_targets);
  values.tensor("bias", random, out.bias);
  values.tensor("token-weights", random, out.token_weights);
  values.tensor("class-weights", random, out.class_weights);
  values.tensor("row-index", random, out.row_index);
  values.tensor("upstream", random, out.upstream);
  values.tensor("upstream-lse", random, out.upstream_lse);
  values.tensor("upstream-logprob", random, out.upstream_logprob);
  values.tensor("upstream-entropy", random, out.upstream_entropy);
  take_factor(values, "upstream-scale", out.upstream_scale);
  take_factor(values, "normalizer", out.normalizer);
  values.integer("rows", 0, out.rows);
  values.integer("seed", 0, out.seed);
  values.integer("invalid-targets", 0, out.invalid_targets);
  values.integer("vocab-padded", 0, out.problem.vocab_padded);
}

void take_objective(const Values& values, Problem& problem) {
  values.integer("vocab", 1, problem.vocab);
  values.choice<Reduction>(
      "reduction", problem.reduction,
      {{"mean", Reduction::mean}, {"sum", Reduction::sum}, {"none", Reduction::none}});
  values.integer("ignore-index", INT64_MIN, problem.ignore_index);
  values.number("label-smoothing", problem.label_smoothing);
  values.choice<SmoothingForm>(
      "label-smoothing-form", problem.label_smoothing_form,
      {{"pytorch", SmoothingForm::pytorch}, {"megatron", SmoothingForm::megatron}});
  values.number("z-loss", problem.z_loss);
  values.number("softcap", problem.softcap);
  values.number("logit-scale", problem.logit_scale);
}

void take_chunking(const Values& values, Chunking& chunking) {
  int given = 0;
  values.with("chunk-rows", [&](const std::string& text) {
    chunking = {Chunking::Rule::rows, parse_integer("chunk-rows", text, 1)};
    ++given;
  });
  values.with("workspace-limit", [&](const std::string& text) {
    chunking = {Chunking::Rule::workspace_limit, parse_integer("workspace-limit", text, 1)};
    ++given;
  });
  values.with("chunking", [&](const std::string& text) {
    const std::string ratio = "aspect_ratio:";
    if (text.starts_with(ratio))
      chunking = {Chunking::Rule::aspect_ratio,
                  parse_integer("chunking", text.substr(ratio.size()), 1)};
    else if (text != "auto")
      refuse("chunking", text, "auto or aspect_ratio:k");
    ++given;
  });
  if (given > 1)
    throw Error(ErrorCode::invalid_argument,
                "found several of --chunk-rows, --workspace-limit and --chunking, wanted one");
}

void take_way(const Values& values, Options& out) {
  Problem& problem = out.problem;
  values.choice<Layout>("layout", problem.layout,
                        {{"replicated", Layout::replicated}, {"row_sharded", Layout::row_sharded}});
  values.list("row-split", out.row_split);
  values.list("shards", problem.shard_widths);
  values.choice<Way>("way", out.way, {{"fused", Way::fused}, {"two_step", Way::two_step}});
  values.integer("keep-logits", 0, problem.keep_logits);
  take_chunking(values, problem.chunking);
  values.choice<Accumulation>("accumulation", problem.accumulation,
                              {{"accurate", Accumulation::accurate},
                               {"balanced", Accumulation::balanced},
                               {"compact", Accumulation::compact}});
  values.with("compute-dtype", [&](const std::string& text) {
    out.compute_dtype = parse_floating("compute-dtype", text);
  });
  const std::vector<std::pair<std::string, GradDType>> grads = {{"same", GradDType::same},
                                                                {"float32", GradDType::float32}};
  values.choice("grad-dtype", problem.grad_hidden, grads);
  values.choice("grad-dtype", problem.grad_weight, grads);
  auto parts = grads;
  parts.emplace_back("none", GradDType::none);
  values.choice("grad-hidden-dtype", problem.grad_hidden, parts);
  values.choice("grad-weight-dtype", problem.grad_weight, parts);
}

/// What is said of a bench's pass alone.
void take_timed_pass(const Values& values, Options& out) {
  values.choice<Answers>("outputs", out.outputs,
                         {{"training", Answers::training}, {"all", Answers::all}});
  out.tune = out.tune || values.flag("tune");
}

void take_command(const Values& values, Options& out) {
  values.choice<DeviceKind>("device", out.device,
                            {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}});
  values.with("deadline", [&](const std::string& text) {
    const double seconds = parse_number("deadline", text);
    const auto most = std::chrono::duration<double>(longest_deadline).count();
    if (seconds < 0.001 || seconds > most)
      refuse("deadline", text,
             "0.001 to " + std::to_string(static_cast<std::int64_t>(most)) + " seconds");
    out.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  });
  values.text("out", out.out);
  values.text("accumulate-into", out.accumulate_into);
  values.text("report", out.report);
  values.text("config", out.config);
  values.integer("random", 1, out.random);
  if (out.random > 0) out.repeat = 2;
  values.integer("repeat", 1, out.repeat);
  values.integer("ranks", 1, out.ranks);
  values.integer("rank", 0, out.rank);
  out.json = values.flag("json");
  values.with("problem", [&](const std::string& text) {
    std::istringstream stream(text + ",");
    for (std::string one; std::getline(stream, one, ',');) {
      if (one.empty()) refuse("problem", text, "names separated by commas, none of them empty");
      out.problems.push_back(one);
    }
    for (const char* size : size_options)
      values.with(size, [&](const std::string& given) {
        refuse(size, given, "nothing: --problem " + files::printable(text) + " says the sizes");
      });
  });
  values.integer("warmup", 0, out.warmup);
  values.integer("iterations", 1, out.iterations);
  values.integer("check-rows", 0, out.check_rows);
  values.with("delay", [&](const std::string& text) {
    out.delay_ms = parse_number("delay", text);
    if (out.delay_ms < 0 || out.delay_ms > 60000) refuse("delay", text, "0 to 60000 milliseconds");
  });
  values.list("sweep", out.sweep);
  values.text("svg", out.svg);
  out.dense = values.flag("dense");
  out.alone = values.flag("alone");
  values.texts("variant", out.variants);
}

/// Files and made-up data do not mix.
void check_sources(const Options& o) {
  const TensorOption* first = nullptr;
  for (const TensorOption* option : o.tensors()) {
    if (!option->given()) continue;
    if (first != nullptr && option->kind != first->kind)
      refuse(option->option, option->kind == TensorOption::Kind::file ? option->name : "random",
             first->kind == TensorOption::Kind::file ? "FILE:NAME, as --" + first->option + " has"
                                                     : "random, as --" + first->option + " is");
    if (first == nullptr) first = option;
  }
}

/// What no single option can know.
void check_together(const Options& options) {
  const auto wrong = [](const std::string& text) {
    throw Error(ErrorCode::invalid_argument, text);
  };
  check_sources(options);
  if (options.problem.keep_logits != 0 && options.way != Way::two_step)
    wrong("--keep-logits: found --way fused, wanted --way two_step");
  if (!options.row_split.empty() && options.problem.layout != Layout::row_sharded)
    wrong("--row-split: found --layout replicated, wanted --layout row_sharded");
  if (options.upstream.given() && options.upstream_scale)
    wrong("found --upstream and --upstream-scale, wanted one of them");
  if (options.soft_targets.given() && options.invalid_targets > 0)
    wrong("--invalid-targets: found --soft-targets, which cannot be invalid");
  if (options.targets.given() && options.soft_targets.given())
    wrong("found --targets and --soft-targets, wanted one of them");
  const bool files = options.command == Command::run ||
                     options.hidden.kind == TensorOption::Kind::file ||
                     options.weight.kind == TensorOption::Kind::file;
  if (files && (!options.hidden.given() || !options.weight.given() ||
                !(options.targets.given() || options.soft_targets.given())))
    wrong(
        "found no --hidden, --weight or targets, wanted --hidden F:NAME --weight F:NAME and "
        "--targets F:NAME or --soft-targets F:NAME");
  if (options.command == Command::run && options.out.empty() && options.report.empty())
    wrong("found neither --out nor --report, wanted somewhere to write to");
  if (options.tune && options.device != DeviceKind::cuda)
    wrong("--tune: found --device cpu, wanted --device cuda");
  if (options.dense && !options.variants.empty())
    wrong("--variant: found --dense, wanted the sharded pass");
}

void take_pass(const Values& values, Options& out) {
  take_inputs(values, out);
  take_objective(values, out.problem);
  take_way(values, out);
  take_timed_pass(values, out);
}

}  // namespace

Options parse_options(Command command, int argc, const char* const* argv) {
  Options out;
  out.command = command;
  if (command == Command::plan || command == Command::bench) out.outputs = Answers::training;
  // A bench is of training with a float32 main gradient, where nothing else is said.
  if (command == Command::bench) out.problem.grad_weight = GradDType::float32;
  po::variables_map map;
  try {
    map = read(command, argc, argv);
  } catch (const po::error& error) {
    refuse_syntax("", error, "an option that --help lists");
  }
  const Values values(map);
  out.help = values.flag("help");
  if (out.help) return out;
  if (map.count("random") != 0) check_beside_random(map);
  take_pass(values, out);
  take_command(values, out);
  check_together(out);
  for (const std::string& variant : out.variants) (void)varied(out, variant);
  return out;
}

Options varied(const Options& options, const std::string& variant) {
  Options out = options;
  std::istringstream stream(variant);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  po::variables_map map;
  try {
    store(words, pass_options(), map);
  } catch (const po::error& error) {
    refuse_syntax("--variant: ", error, "options of a pass");
  }
  if (words.empty()) refuse("variant", variant, "options of a pass");
  const Values values(map);
  for (const char* size : size_options)
    values.with(size, [&](const std::string&) {
      refuse("variant", variant,
             "options other than --" + std::string(size) +
                 ": a variant has the sizes of the first pass");
    });
  take_pass(values, out);
  check_together(out);
  return out;
}

}  // namespace shardloss::launch
