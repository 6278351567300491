#include "io/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "text/printable.hpp"

namespace mpfa::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kLengthBytes = 8;

Status failure(const std::string& path, std::string_view message) {
  return {StatusCode::io_error, fmt::format("{}: {}", printable(path, 4096), message)};
}

Status read_at(std::FILE* file, const std::string& path, std::uint64_t offset, std::byte* out, std::uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::pread(::fileno(file), out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) return failure(path, "became shorter while it was read");
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) try {
  // Without O_NONBLOCK a pipe without a writer would wait here for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return failure(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  SafetensorsFile file;
  file.path_ = path;
  file.file_.reset(::fdopen(fd, "rb"));
  if (file.file_ == nullptr) {
    ::close(fd);
    return failure(path, "cannot be opened: no stream is left");
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return failure(path, "is not a regular file");

  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size < kLengthBytes) {
    return failure(path, fmt::format("has {} bytes; a safetensors file has at least {}", size, kLengthBytes));
  }
  std::uint64_t length = 0;
  MPFA_RETURN_IF_ERROR(read_at(file.file_.get(), path, 0, reinterpret_cast<std::byte*>(&length), sizeof length));
  if (length > kMaxHeaderBytes || length > size - kLengthBytes) {
    return failure(path,
                   fmt::format("claims a header of {} bytes in a file of {}; it is truncated or not a safetensors "
                               "file (headers have at most {} bytes)",
                               length, size, kMaxHeaderBytes));
  }
  std::string json(length, '\0');
  MPFA_RETURN_IF_ERROR(
      read_at(file.file_.get(), path, kLengthBytes, reinterpret_cast<std::byte*>(json.data()), length));
  file.data_offset_ = kLengthBytes + length;
  Result<SafetensorsHeader> header = parse_safetensors_header(json, size - file.data_offset_);
  if (!header.ok()) return failure(path, header.status().message());
  file.header_ = std::move(header).value();
  return file;
} catch (const std::bad_alloc&) {
  return Status{StatusCode::out_of_memory, "the header of the file does not fit in memory"};
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  for (const TensorEntry& t : header_.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

Result<std::vector<std::byte>> SafetensorsFile::read(const TensorEntry& tensor) const {
  try {
    std::vector<std::byte> bytes(tensor.end - tensor.begin);
    MPFA_RETURN_IF_ERROR(read_at(file_.get(), path_, data_offset_ + tensor.begin, bytes.data(), bytes.size()));
    return bytes;
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::out_of_memory, fmt::format("tensor {} of {} bytes does not fit in memory",
                                                         printable(tensor.name), tensor.end - tensor.begin)};
  }
}

Status write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                         const std::map<std::string, std::string>& metadata) try {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite& t : tensors) {
    const Result<std::uint64_t> bytes = tensor_bytes(t.type, t.shape);
    if (!bytes.ok() || bytes.value() != t.bytes.size()) {
      return {StatusCode::invalid_argument,
              fmt::format("tensor {} has {} bytes, which do not match its shape", printable(t.name), t.bytes.size())};
    }
    if (t.name == "__metadata__" || json.contains(t.name)) {
      return {StatusCode::invalid_argument,
              fmt::format("tensor name {} is reserved or given twice; rename it", printable(t.name))};
    }
    json[t.name] = {
        {"dtype", file_type_name(t.type)}, {"shape", t.shape}, {"data_offsets", {offset, offset + bytes.value()}}};
    offset += bytes.value();
  }
  // Names that are not UTF-8 are written with replacement characters; spaces align the data to 8 bytes.
  std::string header = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');

  // The rename below would replace a device or a pipe of that name.
  struct stat target {};
  if (::stat(path.c_str(), &target) == 0 && !S_ISREG(target.st_mode)) {
    return failure(path, "cannot be written: it is not a regular file; give another path");
  }
  const std::string partial = fmt::format("{}.partial{}", path, ::getpid());
  std::FILE* const file = std::fopen(partial.c_str(), "wbx");
  if (file == nullptr) return failure(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  const std::uint64_t length = header.size();
  bool good = std::fwrite(&length, sizeof length, 1, file) == 1 &&
              std::fwrite(header.data(), 1, header.size(), file) == header.size();
  for (const TensorToWrite& t : tensors) {
    good = good && (t.bytes.empty() || std::fwrite(t.bytes.data(), t.bytes.size(), 1, file) == 1);
  }
  int error = errno;
  if (std::fclose(file) != 0) {
    good = false;
    error = errno;
  }
  if (good && std::rename(partial.c_str(), path.c_str()) == 0) return {};
  if (good) error = errno;
  std::remove(partial.c_str());
  return failure(path, fmt::format("cannot be written: {}", std::strerror(error)));
} catch (const std::bad_alloc&) {
  return {StatusCode::out_of_memory, "the header of the file does not fit in memory"};
}

}  // namespace mpfa::io
