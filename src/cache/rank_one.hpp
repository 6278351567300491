// The rank-one term of one key and query head, in an order of additions that every backend can follow.
#pragma once

#include <array>
#include <cstdint>

#include "formats/elements.hpp"

namespace mpfa {

/// Partial sums of a rank-one term: one per lane of a warp, or of vectors that together are as wide.
inline constexpr std::int64_t kRankOneLanes = 32;

/// NaN with one pattern of bits: which operand's NaN survives an addition differs between machines.
[[nodiscard]] inline float one_nan(float v) {
  return v == v ? v : formats::bits_float(formats::kFloatNan);
}

/// a . k in float32: product c (rounded) is added to partial sum c % 32 in rising order of c, then the upper half of
/// the partial sums is added to the lower half until one is left.
[[nodiscard]] inline float rank_one_term(const float* a, const float* k, std::int64_t d) {
  std::array<float, kRankOneLanes> sum{};
  for (std::int64_t c = 0; c < d; ++c) {
    const float product = a[c] * k[c];
    sum[c % kRankOneLanes] += product;
  }
  for (std::int64_t half = kRankOneLanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) sum[l] += sum[l + half];
  }
  return one_nan(sum[0]);
}

}  // namespace mpfa
