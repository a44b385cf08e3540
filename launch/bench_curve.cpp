// The picture of a sweep: time against memory.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "bench.hpp"

namespace shardloss::launch {
namespace {

bool gnuplot_is_there() {
  return std::system("gnuplot --version > /dev/null 2>&1") == 0;  // NOLINT(cert-env33-c)
}

/// "N8192_D4096_V128256_tp2_bf16_C2048" without its chunk rows.
std::string family(const std::string& problem) { return problem.substr(0, problem.rfind("_C")); }

/// The other line of the picture: the products, or on CUDA the products at that chunk size.
double floor_ms(const Json& row) {
  return row.contains("products") ? row["products"]["median_ms"].get<double>() : 0;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

std::string script(const std::string& path, const Json& rows) {
  std::map<std::string, std::string> data;  // family -> lines of MiB, ms, ms of the products
  for (const Json& row : rows) {
    if (!row.contains("pass") || !row["memory"].contains("workspace_bytes")) continue;
    char line[128];
    std::snprintf(line, sizeof line, "%.6g %.6g %.6g\n",
                  row["memory"]["workspace_bytes"].get<double>() / (1 << 20),
                  row["pass"]["median_ms"].get<double>(), floor_ms(row));
    data[family(row["problem"].get<std::string>())] += line;
  }
  std::string text =
      "set terminal svg size 800,500 dynamic\nset output " + quoted(path) +
      "\nset xlabel 'workspace, MiB'\nset ylabel 'milliseconds a pass'\nset logscale x 2\n"
      "set yrange [0:*]\nset key bottom right\nset grid\n";
  std::string plot;
  int number = 0;
  for (const auto& [name, lines] : data) {
    const std::string block = "$d" + std::to_string(++number);
    text += block + " << EOD\n" + lines + "EOD\n";
    plot += (plot.empty() ? "plot " : ", ") + block + " using 1:2 with linespoints title " +
            quoted(name) + " noenhanced, " + block + " using 1:3 with lines dashtype 2 title " +
            quoted(name + ", products alone") + " noenhanced";
  }
  return text + plot + "\n";
}

/// Whether gnuplot did what `commands` say.
bool plot(const std::string& commands) {
  // It may end before it has read all: the write is to fail then, not this process.
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  std::FILE* const pipe = ::popen("gnuplot -", "w");  // NOLINT(cert-env33-c)
  bool good = pipe != nullptr;
  if (good) {
    good = std::fwrite(commands.data(), 1, commands.size(), pipe) == commands.size();
    good = ::pclose(pipe) == 0 && good;
  }
  std::signal(SIGPIPE, before);
  return good;
}

}  // namespace

void draw_curve(const std::string& path, const Json& rows) {
  const std::string text = script(path, rows);
  if (!gnuplot_is_there()) {
    const std::string commands = path + ".gnuplot";
    write_text(commands, text);
    std::fprintf(stderr,
                 "shardloss: no gnuplot on this machine, %s is not drawn; elsewhere, gnuplot %s "
                 "draws it\n",
                 path.c_str(), commands.c_str());
    return;
  }
  if (!plot(text)) std::fprintf(stderr, "shardloss: gnuplot could not draw %s\n", path.c_str());
}

}  // namespace shardloss::launch
