// The cache of timed algorithms: {"<key>": {"algorithm": "<hex>", "text": "..."}}.
#include "gemm_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>

namespace shardloss::detail::cuda {
namespace {

using nlohmann::json;

struct Cache {
  std::mutex mutex;
  std::map<std::string, GemmAlgorithm> entries;
  bool loaded = false;
};

Cache& cache() {
  static Cache instance;
  return instance;
}

std::string file_name() {
  const char* name = std::getenv("SHARDLOSS_GEMM_CACHE");
  return name == nullptr ? "" : name;
}

std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) {
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(word));
    text += digits.data();
  }
  return text;
}

bool from_hex(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr std::size_t digits = 16;
  if (text.size() != std::size(algorithm.data) * digits ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i)
    algorithm.data[i] = std::stoull(text.substr(i * digits, digits), nullptr, 16);
  return true;
}

json read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return json::object();  // not yet written
  json content = json::parse(file, nullptr, false);
  if (!content.is_object()) {
    throw Error(ErrorCode::invalid_argument,
                "SHARDLOSS_GEMM_CACHE: " + path + " is not a JSON object, wanted one or no file");
  }
  return content;
}

void load(Cache& kept) {
  kept.loaded = true;
  if (file_name().empty()) return;
  const auto file = read_file(file_name());  // outlives the loop over it
  for (const auto& [key, entry] : file.items()) {
    GemmAlgorithm algorithm;
    const bool complete = entry.is_object() && entry.contains("algorithm") &&
                          entry["algorithm"].is_string() && entry.contains("text") &&
                          entry["text"].is_string();
    if (!complete || !from_hex(entry["algorithm"], algorithm.algorithm)) continue;
    algorithm.text = entry["text"].get<std::string>() + ", from the cache";
    kept.entries.emplace(key, algorithm);
  }
}

// Held by one process at a time; given up with the object, or with the process.
class FileLock {
 public:
  explicit FileLock(const std::string& path)
      : file_(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    if (file_ < 0 || ::flock(file_, LOCK_EX) != 0) {
      const std::string why = std::strerror(errno);
      if (file_ >= 0) ::close(file_);
      throw Error(ErrorCode::invalid_argument,
                  "SHARDLOSS_GEMM_CACHE: cannot lock " + path + ": " + why);
    }
  }
  ~FileLock() { ::close(file_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

// Several processes may do this at once: one after the other they replace the file whole.
void write(const std::string& key, const GemmAlgorithm& algorithm) {
  const std::string path = file_name();
  if (path.empty()) return;
  const FileLock lock(path + ".lock");
  json content = read_file(path);
  content[key] = {{"algorithm", to_hex(algorithm.algorithm)}, {"text", algorithm.text}};
  const std::string draft = path + "." + std::to_string(getpid());
  std::ofstream out(draft);
  out << content.dump(1) << '\n';
  out.close();
  std::error_code failure;
  if (out)
    std::filesystem::rename(draft, path, failure);
  else
    failure = std::make_error_code(std::errc::io_error);
  if (failure) {
    std::error_code ignored;
    std::filesystem::remove(draft, ignored);
    throw Error(ErrorCode::invalid_argument,
                "SHARDLOSS_GEMM_CACHE: cannot write " + path + ": " + failure.message());
  }
}

}  // namespace

std::optional<GemmAlgorithm> find_cached(const std::string& key) {
  Cache& kept = cache();
  const std::lock_guard lock(kept.mutex);
  if (!kept.loaded) load(kept);
  const auto found = kept.entries.find(key);
  if (found == kept.entries.end()) return std::nullopt;
  return found->second;
}

void keep_cached(const std::string& key, const GemmAlgorithm& algorithm) {
  Cache& kept = cache();
  const std::lock_guard lock(kept.mutex);
  kept.entries.insert_or_assign(key, algorithm);
  write(key, algorithm);
}

}  // namespace shardloss::detail::cuda
