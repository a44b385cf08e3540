#include <algorithm>
#include <filesystem>
#include <map>

#include "printable.hpp"
#include "safetensors.hpp"
#include "shardloss/error.hpp"

namespace shardloss::files {
namespace {

struct OpenFile {
  explicit OpenFile(const std::string& path)
      : map(path), tensors(parse_safetensors(map.bytes(), path)) {}
  MappedFile map;
  std::vector<TensorEntry> tensors;

  const TensorEntry* find(const std::string& name) const {
    for (const TensorEntry& entry : tensors)
      if (entry.name == name) return &entry;
    return nullptr;
  }
};

}  // namespace

struct Checkpoint::Impl {
  std::string path;
  std::map<std::string, std::string> index;               // tensor -> path; empty for a single file
  std::map<std::string, std::unique_ptr<OpenFile>> open;  // by path

  OpenFile& file(const std::string& name) {
    auto& slot = open[name];
    if (!slot) slot = std::make_unique<OpenFile>(name);
    return *slot;
  }

  [[noreturn]] void missing(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& [tensor, where] : index) names.push_back(tensor);
    if (index.empty())
      for (const TensorEntry& entry : open.at(path)->tensors) names.push_back(entry.name);
    std::string some;
    for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 8); ++i)
      some += (i == 0 ? "" : ", ") + printable(names[i]);
    throw Error(ErrorCode::invalid_argument,
                path + ": found no tensor " + printable(name) + ", wanted one of its " +
                    std::to_string(names.size()) + ": " + some + (names.size() > 8 ? ", ..." : ""));
  }
};

Checkpoint::Checkpoint(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  if (!path.ends_with(".json")) {
    impl_->file(path);
    return;
  }
  const MappedFile map(path);
  const auto folder = std::filesystem::path(path).parent_path();
  for (const auto& [name, file] : parse_shard_index(map.bytes(), path))
    impl_->index[name] = (folder / file).string();
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

bool Checkpoint::has(const std::string& name) const {
  if (impl_->path.ends_with(".json")) return impl_->index.count(name) != 0;
  return impl_->open.at(impl_->path)->find(name) != nullptr;
}

const TensorEntry& Checkpoint::tensor(const std::string& name) {
  if (!has(name)) impl_->missing(name);
  const std::string& path = impl_->index.empty() ? impl_->path : impl_->index.at(name);
  const TensorEntry* entry = impl_->file(path).find(name);
  if (entry == nullptr)
    throw Error(ErrorCode::invalid_argument, path + ": found no tensor " + printable(name) +
                                                 ", wanted it there as " + impl_->path + " says");
  return *entry;
}

void Checkpoint::release(std::span<const std::byte> part) const {
  for (const auto& [path, file] : impl_->open) {
    const auto bytes = file->map.bytes();
    if (part.data() >= bytes.data() && part.data() < bytes.data() + bytes.size())
      file->map.release(part);
  }
}

}  // namespace shardloss::files
