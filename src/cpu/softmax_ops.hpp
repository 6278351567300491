// One step of the online softmax for a few rows of a key tile, in one pass over each row.
#pragma once

#include <cmath>
#include <cstdint>

#include "mpfa/attention.hpp"
#include "mpfa/recipe.hpp"

namespace mpfa::cpu {

struct SoftmaxStep {
  PMode mode = PMode::f32;
  float p_scale = 1.0F;
  bool same_codes = false;  // the denominator is the sum of the rounded probabilities
  float scale = 1.0F;       // from x to log2 units
};

/// What a tile without a maximum adds to a denominator: NaN when a score is NaN, 0 when all are masked.
inline float without_maximum(const float* x) {
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    if (std::isnan(x[i])) return x[i];
  }
  return 0.0F;
}

/// Rows of x [rows, kKeyTile], -inf where masked, become rounded probabilities relative to the new maximum m[r]. l[r]
/// is brought up to date; keep[r] is what sums of earlier tiles are to be multiplied by. NaN scores are no maximum and
/// stay NaN.
void softmax_rows(const SoftmaxStep& step, std::int64_t rows, float* x, float* m, float* l, float* keep);

}  // namespace mpfa::cpu
