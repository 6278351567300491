// Any bytes as a file: the reader either refuses with a message or gives tensors that lie inside the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_file(const std::string& path, std::uint64_t size) {
  const mpfa::Result<mpfa::io::SafetensorsFile> file = mpfa::io::SafetensorsFile::open(path);
  if (!file.ok()) {
    require(!file.status().message().empty());
    return;
  }
  std::uint64_t end = 0;
  for (const mpfa::io::TensorEntry& tensor : file.value().header().tensors) {
    require(tensor.begin >= end && tensor.end >= tensor.begin && tensor.end <= size);
    end = tensor.end;
    const mpfa::Result<std::vector<std::byte>> bytes = file.value().read(tensor);
    require(bytes.ok() && bytes.value().size() == tensor.end - tensor.begin);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int fd = memfd_create("safetensors", 0);
  require(fd >= 0 && write(fd, data, size) == static_cast<ssize_t>(size));
  check_file("/proc/self/fd/" + std::to_string(fd), size);
  close(fd);
  return 0;
}
