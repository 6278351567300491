// Products of prefill. A panel holds kPanel query rows (or half as many) in the lanes of its vectors, so that what one
// panel needs of Q, P and O stays in the level-1 cache while a tile of K or V streams by:
// S^T[keys][rows] = K Q^T and O^T[channels][rows] += V^T P^T.
#pragma once

#include <array>
#include <cstdint>

namespace mpfa::cpu {

inline constexpr std::int64_t kPanel = 32;
/// Factors of a panel that leave it as it is.
inline constexpr auto kPanelOfOnes = [] {
  std::array<float, kPanel> ones{};
  ones.fill(1.0F);
  return ones;
}();

/// c[n][width] = c * keep + a b, with a[n][k] at a[i * row_stride + j * k_stride] and b[k][width]. keep [width] may be
/// null: then c is only written. width is kPanel or half of it. Sums run in the order of k.
void panel_product(std::int64_t n, std::int64_t k, std::int64_t width, const float* a, std::int64_t row_stride,
                   std::int64_t k_stride, const float* b, const float* keep, float* c);

/// The same, but an element of b that is 0 leaves c as it is, whatever a holds there.
void panel_product_selected(std::int64_t n, std::int64_t k, std::int64_t width, const float* a, std::int64_t row_stride,
                            std::int64_t k_stride, const float* b, const float* keep, float* c);

/// True when no value is a NaN or Inf.
[[nodiscard]] bool panel_finite(const float* x, std::int64_t n);

}  // namespace mpfa::cpu
