// Device memory of a test: copies of host arrays between guards, checked against their originals afterwards.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mpfa::test {

inline void require(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

class Memory {
 public:
  /// A copy of n values, an input; null: memory to be written, NaN in every type.
  template <class T>
  T* copy(const T* host, std::size_t n) {
    Block b;
    b.bytes = n * sizeof(T);
    std::vector<std::byte> all(b.bytes + 2 * kGuard, kMark);
    if (host != nullptr) {
      b.original.resize(b.bytes);
      if (b.bytes > 0) std::memcpy(b.original.data(), host, b.bytes);
      std::copy(b.original.begin(), b.original.end(), all.begin() + kGuard);
    } else {
      std::fill_n(all.begin() + kGuard, b.bytes, std::byte{0xFF});
    }
    void* p = nullptr;
    require(cudaMalloc(&p, all.size()));
    b.memory.reset(p);
    require(cudaMemcpy(p, all.data(), all.size(), cudaMemcpyHostToDevice));
    blocks_.push_back(std::move(b));
    return reinterpret_cast<T*>(static_cast<std::byte*>(p) + kGuard);
  }
  template <class T>
  T* copy(const std::vector<T>& host) {
    return copy(host.data(), host.size());
  }

  /// Changes an input, as a caller does between two calls.
  template <class T>
  void set(const T* at, const std::vector<T>& host) {
    for (Block& b : blocks_) {
      if (b.data() != reinterpret_cast<const std::byte*>(at)) continue;
      std::memcpy(b.original.data(), host.data(), host.size() * sizeof(T));
      require(cudaMemcpy(b.data(), b.original.data(), b.bytes, cudaMemcpyHostToDevice));
    }
  }

  /// Guards are whole and inputs what they were.
  [[nodiscard]] bool intact() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& b) {
      std::vector<std::byte> all(b.bytes + 2 * kGuard);
      require(cudaMemcpy(all.data(), b.memory.get(), all.size(), cudaMemcpyDeviceToHost));
      const auto marked = [](std::byte x) { return x == kMark; };
      return std::all_of(all.begin(), all.begin() + kGuard, marked) &&
             std::all_of(all.end() - kGuard, all.end(), marked) &&
             std::equal(b.original.begin(), b.original.end(), all.begin() + kGuard);
    });
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 512;
  static constexpr std::byte kMark{0xA7};
  struct Free {
    void operator()(void* p) const { cudaFree(p); }
  };
  struct Block {
    std::unique_ptr<void, Free> memory;
    std::size_t bytes = 0;
    std::vector<std::byte> original;  // empty: not an input
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory.get()) + kGuard; }
  };
  std::vector<Block> blocks_;
};

template <class T>
std::vector<T> to_host(const T* device, std::size_t n) {
  std::vector<T> v(n);
  require(cudaMemcpy(v.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}

}  // namespace mpfa::test
