// Rows of caller tensors as float32, and bf16 bits: the two conversions cache and kernels share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/elements.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

[[nodiscard]] inline float bf16_to_float(std::uint16_t bits) {
  return formats::Bf16::decode(bits);
}

/// Round to nearest even, saturating; NaN and Inf stay what they are.
[[nodiscard]] inline std::uint16_t float_to_bf16(float x) {
  return static_cast<std::uint16_t>(formats::Bf16::encode(x).bits);
}

/// n elements of `t` from element offset `offset`, `stride` elements apart, to out. f32, bf16, f16 or f64.
inline void load_row(const void* data, DType t, std::int64_t offset, std::int64_t stride, std::int64_t n, float* out) {
  switch (t) {
    case DType::f32: {
      const float* p = static_cast<const float*>(data) + offset;
      if (stride == 1) {
        std::copy_n(p, n, out);
      } else {
        for (std::int64_t i = 0; i < n; ++i) out[i] = p[i * stride];
      }
      return;
    }
    case DType::bf16: {
      const auto* p = static_cast<const std::uint16_t*>(data) + offset;
      for (std::int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(p[i * stride]);
      return;
    }
    case DType::f16: {
      const auto* p = static_cast<const std::uint16_t*>(data) + offset;
      for (std::int64_t i = 0; i < n; ++i) out[i] = formats::F16::decode(p[i * stride]);
      return;
    }
    case DType::f64: {
      const double* p = static_cast<const double*>(data) + offset;
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(p[i * stride]);
      return;
    }
    default: return;
  }
}

}  // namespace mpfa
