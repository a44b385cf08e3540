#include "safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace language_model {
namespace {

constexpr std::uint64_t largest_header = 1 << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what);
}

std::uint64_t element_bytes(const std::string& dtype) { return dtype == "I64" ? 8 : 4; }

std::string describe(const std::string& dtype, std::int64_t rows, std::int64_t columns) {
  std::ostringstream text;
  text << dtype << " [" << rows << ", " << columns << "]";
  return text.str();
}

void write_all(int file, const std::string& path, const void* data, std::uint64_t bytes,
               std::uint64_t at) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(file, from, bytes, static_cast<off_t>(at));
    if (done < 0) fail(path, std::strerror(errno));
    from += done;
    at += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::uint64_t>(done);
  }
}

void read_all(int file, const std::string& path, void* data, std::uint64_t bytes,
              std::uint64_t at) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pread(file, to, bytes, static_cast<off_t>(at));
    if (done < 0) fail(path, std::strerror(errno));
    if (done == 0) fail(path, "ends too early");
    to += done;
    at += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::uint64_t>(done);
  }
}

/// Places the tensors one after the other; returns the header with its length in front.
std::string make_header(std::map<std::string, FileTensor>& tensors, const Metadata& metadata) {
  nlohmann::json json;
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (auto& [name, tensor] : tensors) {
    tensor.begin = at;
    at +=
        static_cast<std::uint64_t>(tensor.rows() * tensor.columns()) * element_bytes(tensor.dtype);
    tensor.end = at;
    json[name] = {{"dtype", tensor.dtype},
                  {"shape", tensor.shape},
                  {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  for (auto& entry : tensors) {
    entry.second.begin += sizeof size + size;
    entry.second.end += sizeof size + size;
  }
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const World& world, std::string path,
                                     std::map<std::string, FileTensor> tensors,
                                     const Metadata& metadata)
    : world_(world),
      path_(std::move(path)),
      unfinished_(path_ + ".unfinished"),
      tensors_(std::move(tensors)) {
  const std::string header = make_header(tensors_, metadata);
  const int make = world.first() ? O_CREAT | O_TRUNC : 0;
  if (!world.first()) barrier(world_.all);
  file_ = ::open(unfinished_.c_str(), O_WRONLY | O_CLOEXEC | make, 0666);
  if (file_ < 0) fail(unfinished_, std::strerror(errno));
  if (world.first()) {
    write_all(file_, unfinished_, header.data(), header.size(), 0);
    barrier(world_.all);
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ >= 0) ::close(file_);
}

void SafetensorsWriter::write(const std::string& name, Share rows, const void* data) {
  const FileTensor& tensor = tensors_.at(name);
  const std::uint64_t row_bytes =
      static_cast<std::uint64_t>(tensor.columns()) * element_bytes(tensor.dtype);
  write_all(file_, unfinished_, data, static_cast<std::uint64_t>(rows.count) * row_bytes,
            tensor.begin + static_cast<std::uint64_t>(rows.first) * row_bytes);
}

void SafetensorsWriter::finish() {
  const int file = std::exchange(file_, -1);
  if (::fsync(file) != 0 || ::close(file) != 0) fail(unfinished_, std::strerror(errno));
  barrier(world_.all);
  if (world_.first() && std::rename(unfinished_.c_str(), path_.c_str()) != 0)
    fail(path_, std::strerror(errno));
  barrier(world_.all);
}

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file_ < 0 || ::fstat(file_, &status) != 0) fail(path, std::strerror(errno));
  const auto file_size = static_cast<std::uint64_t>(status.st_size);
  std::uint64_t size = 0;
  read_all(file_, path, &size, sizeof size, 0);
  if (size > largest_header || size > file_size - sizeof size)
    fail(path, "is no safetensors file: its header would have " + std::to_string(size) + " bytes");
  std::string header(size, ' ');
  read_all(file_, path, header.data(), size, sizeof size);
  try {
    parse(header, sizeof size + size, file_size);
  } catch (const nlohmann::json::exception& error) {
    fail(path, std::string("bad header: ") + error.what());
  }
}

SafetensorsReader::~SafetensorsReader() {
  if (file_ >= 0) ::close(file_);
}

void SafetensorsReader::parse(const std::string& header, std::uint64_t data_begin,
                              std::uint64_t file_size) {
  const auto json = nlohmann::json::parse(header);
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      metadata_ = entry.get<Metadata>();
      continue;
    }
    const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    const std::uint64_t data_size = file_size - data_begin;
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_size)
      fail(path_, "tensor " + name + " lies outside the file");
    tensors_[name] = {entry.at("dtype").get<std::string>(),
                      entry.at("shape").get<std::vector<std::int64_t>>(), data_begin + offsets[0],
                      data_begin + offsets[1]};
  }
}

const std::string& SafetensorsReader::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) fail(path_, "has no metadata \"" + key + "\"");
  return found->second;
}

void SafetensorsReader::read(const std::string& name, std::int64_t rows, std::int64_t columns,
                             Share own, std::vector<float>& values) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(path_, "has no tensor " + name);
  const FileTensor& tensor = found->second;
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(columns) * sizeof(float);
  if (tensor.dtype != "F32" || tensor.rows() != rows || tensor.columns() != columns ||
      tensor.end - tensor.begin != static_cast<std::uint64_t>(rows) * row_bytes)
    fail(path_, name + " is " + describe(tensor.dtype, tensor.rows(), tensor.columns()) +
                    ", wanted " + describe("F32", rows, columns));
  values.resize(static_cast<std::size_t>(own.count * columns));
  read_all(file_, path_, values.data(), static_cast<std::uint64_t>(own.count) * row_bytes,
           tensor.begin + static_cast<std::uint64_t>(own.first) * row_bytes);
}

}  // namespace language_model
