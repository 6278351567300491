// mpfa._core.DeviceState: what a cache keeps beside its pages, copied to the memory of a CUDA device.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "cuda/runtime.hpp"
#include "mpfa/cache.hpp"

namespace mpfa::python {

/// Means, tokens in 16 bits, means of pages and rank-one terms of all sequences: one block of device memory.
class DeviceState {
 public:
  /// Reads the cache; nothing is on a device yet. Sequences get room for 16-bit tokens up to max_kv, so that no length
  /// that a call takes leads out of them.
  DeviceState(const PagedCache& cache, std::int64_t max_kv);
  /// To the current device.
  [[nodiscard]] Status upload();

  /// Pointers of `view` to the state. Needs upload.
  void place(CacheView& view) const;
  [[nodiscard]] std::int64_t batch() const { return static_cast<std::int64_t>(sequences_.size()); }
  [[nodiscard]] std::int64_t max_kv() const { return max_kv_; }

 private:
  /// Copies `bytes` into a part of `room` bytes; `pointer` will be its address on the device. Null stays null.
  template <class T>
  void put(const T*& pointer, std::int64_t count, std::int64_t room);
  void put_terms(const CacheView& view);
  std::byte* add(std::int64_t bytes, const std::function<void(const std::byte*)>& set);

  struct Part {
    std::size_t offset;
    std::function<void(const std::byte*)> set;  // told the address
  };
  std::int64_t max_kv_;
  std::vector<SequenceView> sequences_;
  CacheView terms_;  // rank-one terms and means of pages
  std::vector<std::byte> host_;
  std::vector<Part> parts_;
  cuda::Buffer memory_;
};

}  // namespace mpfa::python
