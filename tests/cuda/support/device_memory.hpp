// Copies of host arrays in device memory, for tests of the library's own calls.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>

namespace mpfa::test {

inline void require(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

/// Kept until the end of the test.
class Memory {
 public:
  template <class T>
  T* copy(const T* host, std::size_t n) {
    void* p = nullptr;
    require(cudaMalloc(&p, std::max<std::size_t>(n * sizeof(T), 1)));
    held_.emplace_back(p);
    if (host != nullptr && n > 0) require(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(p);
  }
  template <class T>
  T* copy(const std::vector<T>& host) {
    return copy(host.data(), host.size());
  }

 private:
  struct Free {
    void operator()(void* p) const { cudaFree(p); }
  };
  std::vector<std::unique_ptr<void, Free>> held_;
};

template <class T>
std::vector<T> to_host(const T* device, std::size_t n) {
  std::vector<T> v(n);
  require(cudaMemcpy(v.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}

}  // namespace mpfa::test
