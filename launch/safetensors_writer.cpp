#include "safetensors_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "replaced_file.hpp"
#include "safetensors.hpp"
#include "shardloss/error.hpp"

namespace shardloss::files {
namespace {

/// 8 bytes of length, and the JSON padded so that the data begins at a multiple of 8.
std::string encode(const nlohmann::ordered_json& header) {
  std::string json = header.dump();
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string out;
  for (std::size_t i = 0; i < 8; ++i)
    out += static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i) & 255);
  return out + json;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<TensorLayout>& tensors, Role role)
    : path_(behind_links(path)), temporary_(temporary_of(path_)), role_(role) {
  auto header = nlohmann::ordered_json::object();
  std::uint64_t end = 0;
  for (const TensorLayout& tensor : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    const std::size_t element = size_of(tensor.dtype);
    const std::uint64_t begin = end;
    end += static_cast<std::uint64_t>(elements) * element;
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
    places_[tensor.name] = {begin, elements, element};
  }
  const std::string front = encode(header);
  for (auto& [name, place] : places_) place.offset += front.size();

  fd_ = role == Role::creator ? create_temporary(temporary_)
                              : ::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) refuse(std::strerror(errno));
  if (role == Role::participant) return;
  if (::ftruncate(fd_, static_cast<off_t>(front.size() + end)) != 0) refuse(std::strerror(errno));
  write_bytes(0, std::as_bytes(std::span(front)));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (role_ == Role::creator && !committed_) ::unlink(temporary_.c_str());
}

void SafetensorsWriter::refuse(const std::string& what) const {
  throw Error(ErrorCode::invalid_argument, path_ + ": " + what + ", wanted a file to write");
}

void SafetensorsWriter::write_bytes(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) refuse(std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void SafetensorsWriter::write(const std::string& name, std::int64_t first, std::int64_t count,
                              const void* data) {
  const Place& place = places_.at(name);
  if (first < 0 || count < 0 || first > place.elements - count)
    throw Error(ErrorCode::internal, path_ + ": elements out of range of tensor " + name);
  write_bytes(
      place.offset + static_cast<std::uint64_t>(first) * place.element_bytes,
      {static_cast<const std::byte*>(data), static_cast<std::size_t>(count) * place.element_bytes});
}

void SafetensorsWriter::write(const std::string& name, const void* data) {
  write(name, 0, places_.at(name).elements, data);
}

void SafetensorsWriter::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  const bool synced = ::fsync(fd) == 0;
  const int error = errno;
  if (::close(fd) != 0) refuse(std::strerror(errno));
  // Pipes and some file systems cannot be synchronised; that is no fault of the data.
  if (!synced && error != EINVAL) refuse(std::strerror(error));
}

void SafetensorsWriter::commit() {
  close();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(std::strerror(errno));
  committed_ = true;
}

}  // namespace shardloss::files
