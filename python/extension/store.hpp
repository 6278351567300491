// Writing rows of arrays: rounded from float32, or bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "extension/arrays.hpp"
#include "formats/elements.hpp"

namespace mpfa::python {

/// x[0..n) to element offset `offset` of `to` (f32, bf16 or f16), `stride` elements apart; round to nearest even.
inline void store_row(const float* x, std::int64_t n, const Array& to, std::int64_t offset, std::int64_t stride) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = offset + i * stride;
    if (to.dtype == DType::f32) {
      static_cast<float*>(to.data)[at] = x[i];
    } else {
      const auto bits = to.dtype == DType::bf16 ? formats::Bf16::encode(x[i]).bits : formats::F16::encode(x[i]).bits;
      static_cast<std::uint16_t*>(to.data)[at] = static_cast<std::uint16_t>(bits);
    }
  }
}

/// The last dimension of `from` at element offset `offset`, `stride` elements apart, to contiguous memory.
inline void copy_row(const Array& from, std::int64_t offset, std::int64_t stride, char* to) {
  const auto size = static_cast<std::int64_t>(dtype_bytes(from.dtype));
  const char* data = static_cast<const char*>(from.data) + offset * size;
  for (std::int64_t i = 0; i < from.shape[3]; ++i) {
    std::memcpy(to + i * size, data + i * stride * size, static_cast<std::size_t>(size));
  }
}

}  // namespace mpfa::python
