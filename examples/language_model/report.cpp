#include "report.hpp"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace language_model {
namespace {

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string mebibytes(double bytes) { return number(bytes / (1 << 20), 1) + " MiB"; }

class Table {
 public:
  void row(const std::string& name, const std::string& value) {
    char line[200];
    std::snprintf(line, sizeof line, "  %-52s %s\n", name.c_str(), value.c_str());
    text_ << line;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

const char* way(const Options& options) {
  if (options.dense) return "dense: whole logits, without the library";
  if (options.fsdp) return "FSDP-style: every rank has words of its own and a shard";
  return options.row_sharded ? "row_sharded" : "replicated";
}

}  // namespace

void print_opening(const Options& options, const Text& text, Trainer& trainer, const World& world) {
  const Trainer::Sizes sizes = trainer.sizes();
  std::printf("%zu words to learn from, %zu held out, a vocabulary of %lld\n", text.train.size(),
              text.held_out.size(), static_cast<long long>(text.vocab()));
  std::printf("%d rank%s: %d share a head, %d cop%s of it; %s\n", world.all.size(),
              world.all.size() == 1 ? "" : "s", world.tensor.size(), world.data.size(),
              world.data.size() == 1 ? "y" : "ies", way(options));
  std::printf("%s of parameters, of which this rank's shard of embedding and head is %s\n",
              mebibytes(static_cast<double>(sizes.parameter_bytes)).c_str(),
              mebibytes(static_cast<double>(sizes.shard_bytes)).c_str());
  std::fflush(stdout);
}

std::string to_string(const Report& report, const Options& options, const Trainer::Sizes& sizes,
                      const World& world) {
  Table table;
  table.row("steps, words, seconds", std::to_string(report.steps) + ", " +
                                         std::to_string(report.words) + ", " +
                                         number(report.seconds, 1));
  const double vocab_bytes = static_cast<double>(sizes.vocab) * sizeof(float);
  const double logits = static_cast<double>(sizes.words_per_call) * vocab_bytes;
  const char* made = options.dense ? "logits of a call, whole" : "logits of a call, never made";
  table.row(made, mebibytes(logits) + "  [" + std::to_string(sizes.words_per_call) + ", " +
                      std::to_string(sizes.vocab) + "]");
  if (!options.dense) {
    table.row("the same over the whole training",
              number(static_cast<double>(report.words) * vocab_bytes / (1 << 30), 1) + " GiB");
    table.row("workspace used instead, per rank",
              mebibytes(static_cast<double>(sizes.workspace_bytes)) + "  " +
                  std::to_string(sizes.chunk_rows) + " rows at a time");
  }
  if (options.row_sharded) {
    const double whole = static_cast<double>(options.width) * vocab_bytes;
    table.row("weight [V, D], held by no rank", mebibytes(whole));
    table.row("weight, gradient, optimizer state of this rank",
              "4 x " + mebibytes(static_cast<double>(sizes.shard_bytes)) + "  [V / " +
                  std::to_string(world.tensor.size()) + ", D]");
  }
  table.row("held-out unigram entropy", number(report.unigram, 4) + " nats per word");
  table.row("held-out loss", number(report.held_out, 4) + " nats per word, " +
                                 number(report.unigram - report.held_out, 4) + " under it");
  if (report.margin > 0)
    table.row("wanted: at least " + number(report.margin, 2) + " under it",
              report.passes() ? "yes" : "NO");
  return table.text();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

}  // namespace language_model
