// RoPE tables and the rotation in plain code, for tests of append and shift.
#pragma once

#include <cmath>
#include <vector>

#include "cache/convert.hpp"
#include "mpfa/rope.hpp"

namespace mpfa::test {

/// cos and sin of position * 100^(-i / half), as float32 or rounded to bf16.
struct RopeTables {
  std::int64_t positions, half;
  DType dtype;
  std::vector<float> cos, sin;
  std::vector<std::uint16_t> cos_bf16, sin_bf16;

  RopeTables(std::int64_t rows, std::int64_t pairs, DType t = DType::f32) : positions(rows), half(pairs), dtype(t) {
    for (std::int64_t p = 0; p < rows; ++p) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(pairs));
        for (auto* table : {&cos, &sin}) {
          const auto v = static_cast<float>(table == &cos ? std::cos(angle) : std::sin(angle));
          (table == &cos ? cos_bf16 : sin_bf16).push_back(float_to_bf16(v));
          table->push_back(t == DType::f32 ? v : bf16_to_float(float_to_bf16(v)));
        }
      }
    }
  }
  [[nodiscard]] Rope rope(RopeStyle style, std::int64_t begin = 0) const {
    Rope r;
    r.style = style;
    r.begin = begin;
    const bool wide = dtype == DType::f32;
    const auto view = [&](const std::vector<float>& x, const std::vector<std::uint16_t>& bits) {
      const void* data = wide ? static_cast<const void*>(x.data()) : bits.data();
      return TensorView{data, dtype, {positions, half, 1, 1}, {half, 1, 0, 0}};
    };
    r.cos = view(cos, cos_bf16);
    r.sin = view(sin, sin_bf16);
    return r;
  }
  /// Rotates one head to `position`.
  void turn(float* x, RopeStyle style, std::int64_t begin, std::int64_t position) const {
    for (std::int64_t i = 0; i < half; ++i) {
      float& a = x[begin + (style == RopeStyle::half ? i : 2 * i)];
      float& b = x[begin + (style == RopeStyle::half ? i + half : 2 * i + 1)];
      const float c = cos[position * half + i], s = sin[position * half + i];
      const float turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    }
  }
};

}  // namespace mpfa::test
