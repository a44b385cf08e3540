#include "output_paths.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <system_error>

#include "replaced_file.hpp"
#include "safetensors.hpp"
#include "source.hpp"

namespace shardloss::launch {
namespace {

namespace fs = std::filesystem;

/// A file that an option names, itself or through an index.
struct Read {
  std::string option, path;
};

/// Every file that the options have read. Throws as Checkpoint does for a bad index.
std::vector<Read> files_read(const Options& o) {
  std::vector<Read> out;
  const auto add = [&](const std::string& option, const std::string& path) {
    out.push_back({option, path});
    if (option == "config" || !path.ends_with(".json")) return;
    const files::MappedFile map(path);
    std::set<std::string> shards;
    for (const auto& [name, file] : files::parse_shard_index(map.bytes(), path))
      if (shards.insert(file).second)
        out.push_back({option, (fs::path(path).parent_path() / file).string()});
  };
  for (const TensorOption* one : o.tensors())
    if (one->kind == TensorOption::Kind::file) add(one->option, one->file);
  if (!o.accumulate_into.empty() && !is_made_up(o)) add("accumulate-into", o.accumulate_into);
  if (!o.config.empty()) add("config", o.config);
  return out;
}

/// Device and inode; false where nothing is there.
bool identity(const std::string& path, std::pair<dev_t, ino_t>& out) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  out = {status.st_dev, status.st_ino};
  return true;
}

bool same_file(const std::string& a, const std::string& b) {
  std::pair<dev_t, ino_t> one, other;
  if (identity(a, one) && identity(b, other)) return one == other;
  std::error_code ignored;
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

/// What has the name and would be lost to a file of that name; "" where there is none, or a file.
/// A link that leads nowhere is none.
std::string obstacle(const std::string& path) {
  std::error_code ignored;
  switch (fs::status(path, ignored).type()) {
    case fs::file_type::directory: return "a directory";
    case fs::file_type::fifo: return "a FIFO";
    case fs::file_type::socket: return "a socket";
    case fs::file_type::character:
    case fs::file_type::block: return "a device";
    default: return "";
  }
}

void check_replaceable(const std::string& option, const std::string& path) {
  const std::string found = obstacle(path);
  if (!found.empty()) refuse(option, path, "a file or a new name, not " + found);
}

bool leads_nowhere(const std::string& path) {
  std::error_code ignored;
  return fs::is_symlink(path, ignored) && !fs::exists(path, ignored);
}

}  // namespace

void check_outputs(const Options& options) {
  std::vector<Read> written;
  const auto add = [&](const std::string& option, const std::string& path) {
    if (path.empty()) return;
    check_replaceable(option, path);
    if (leads_nowhere(path))
      refuse(option, path, "a file or a new name, not a link that leads nowhere");
    const std::string file = files::behind_links(path), temporary = files::temporary_of(file);
    check_replaceable(option, temporary);
    written.push_back({option, file});
    written.push_back({option, temporary});
  };
  add("out", options.out);
  add("report", options.report);
  add("svg", options.svg);
  if (!options.svg.empty()) add("svg", options.svg + ".gnuplot");
  if (written.empty()) return;
  const std::vector<Read> read = files_read(options);
  for (std::size_t i = 0; i < written.size(); ++i) {
    const auto& [option, path] = written[i];
    for (const Read& one : read)
      if (same_file(path, one.path))
        refuse(option, path,
               "another file than " + one.path + ", which --" + one.option + " reads");
    for (std::size_t k = 0; k < i; ++k)
      if (written[k].option != option && same_file(path, written[k].path))
        refuse(option, path, "another file than --" + written[k].option + " writes");
  }
}

}  // namespace shardloss::launch
