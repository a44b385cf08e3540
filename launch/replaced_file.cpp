#include "replaced_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace shardloss::files {

std::string behind_links(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path file = std::filesystem::canonical(path, error);
  return error ? path : file.string();
}

std::string temporary_of(const std::string& file) { return file + ".partial"; }

int create_temporary(const std::string& temporary) {
  ::unlink(temporary.c_str());
  return ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

}  // namespace shardloss::files
