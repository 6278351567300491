// Orthonormal Hadamard rotation of rows, its own inverse.
#pragma once

#include <cmath>
#include <cstdint>

namespace mpfa {

/// Largest power of two that divides d: the block the rotation works on (d = 80 rotates blocks of 16).
[[nodiscard]] constexpr std::int64_t hadamard_block(std::int64_t d) {
  return d & -d;
}

/// x[row * stride + 0..d) <- x H, H = Hadamard / sqrt(block), for every block of the row.
inline void hadamard_rows(float* x, std::int64_t rows, std::int64_t stride, std::int64_t d, std::int64_t block) {
  const float norm = 1.0F / std::sqrt(static_cast<float>(block));
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = x + r * stride;
    for (std::int64_t base = 0; base < d; base += block) {
      for (std::int64_t half = 1; half < block; half *= 2) {
        for (std::int64_t i = base; i < base + block; i += 2 * half) {
          for (std::int64_t j = i; j < i + half; ++j) {
            const float a = row[j];
            const float b = row[j + half];
            row[j] = a + b;
            row[j + half] = a - b;
          }
        }
      }
    }
    for (std::int64_t i = 0; i < d; ++i) row[i] *= norm;
  }
}
inline void hadamard_rows(float* x, std::int64_t rows, std::int64_t stride, std::int64_t d) {
  hadamard_rows(x, rows, stride, d, hadamard_block(d));
}

}  // namespace mpfa
