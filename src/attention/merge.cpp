#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

/// One row of which both sides hold keys: weights exp(L - max), in double so that the order of merges hardly shows.
float merge_row(std::int64_t d, const float* o_a, double lse_a, const float* o_b, double lse_b, float* o) {
  const double top = std::max(lse_a, lse_b);
  const double a = std::exp(lse_a - top);
  const double b = std::exp(lse_b - top);
  const double sum = a + b;
  for (std::int64_t i = 0; i < d; ++i) o[i] = static_cast<float>((a * o_a[i] + b * o_b[i]) / sum);
  return static_cast<float>(top + std::log(sum));
}

}  // namespace

void merge_states(std::int64_t rows, std::int64_t d, const float* o_a, const float* lse_a, const float* o_b,
                  const float* lse_b, float* o, float* lse) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float a = lse_a[r];
    const float b = lse_b[r];
    float* row = o + r * d;
    // Empty sides are left out by selection, so whatever their rows hold (even NaN) does not matter.
    if (a == kEmpty && b == kEmpty) {
      std::fill_n(row, d, 0.0F);
      lse[r] = kEmpty;
    } else if (b == kEmpty) {
      std::copy_n(o_a + r * d, d, row);
      lse[r] = a;
    } else if (a == kEmpty) {
      std::copy_n(o_b + r * d, d, row);
      lse[r] = b;
    } else {
      lse[r] = merge_row(d, o_a + r * d, a, o_b + r * d, b, row);
    }
  }
}

}  // namespace mpfa
