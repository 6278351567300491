// Views of caller-owned tensors: a pointer, a dtype, a shape and strides counted in elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mpfa {

enum class DType : std::uint8_t { f32 = 0, f64 = 1, bf16 = 2, f16 = 3, u8 = 4, i32 = 5, i64 = 6 };

[[nodiscard]] constexpr std::size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

/// Read-only view, up to four dimensions; unused dimensions have extent 1.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};   // outermost first
  std::array<std::int64_t, 4> stride{0, 0, 0, 0};  // elements
};

struct MutableTensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  std::array<std::int64_t, 4> stride{0, 0, 0, 0};
};

/// Row-major (contiguous) view of `data` with the given shape.
[[nodiscard]] constexpr TensorView contiguous(const void* data, DType t, std::array<std::int64_t, 4> shape) {
  return {data, t, shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
}

[[nodiscard]] constexpr MutableTensorView contiguous(void* data, DType t, std::array<std::int64_t, 4> shape) {
  return {data, t, shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
}

}  // namespace mpfa
