// The few things that the language bindings need of the CUDA runtime; builds without CUDA answer that they have none.
#pragma once

#include <cstddef>
#include <utility>

#include "mpfa/status.hpp"

namespace mpfa::cuda {

/// Compute capability (major, minor) of the current device.
[[nodiscard]] Result<std::pair<int, int>> current_capability();
/// Ordinal of the current device.
[[nodiscard]] Result<int> current_ordinal();

/// Memory of the device that was current. Made and freed without disturbing the capture of a stream elsewhere; freeing
/// waits for the work of the device.
class Buffer {
 public:
  [[nodiscard]] static Result<Buffer> make(std::size_t bytes);
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Copies between any two of host and device, and waits for the copy.
[[nodiscard]] Status copy(void* to, const void* from, std::size_t bytes);

}  // namespace mpfa::cuda
