// Softmax of a transposed tile x[keys][width]: query rows lie along the lanes, width is a multiple of kLaneMultiple, so
// every step is element-wise. Compiled for every instruction set the compiler offers and chosen at run time.
#pragma once

#include <cstdint>

#include "mpfa/recipe.hpp"

namespace mpfa::cpu {

/// m[r] becomes max(m[r], maximum of the column * scale) and keep[r] = exp2(old m - new m): 0 for a row that had no key
/// before, 1 for one that still has none. NaN scores do not count for the maximum. scale > 0.
void column_max(std::int64_t keys, std::int64_t width, float scale, const float* x, float* m, float* keep);

/// x = round(exp2(x * scale - m)), 0 where x is -inf; l[r] = l[r] * keep[r] + the sum before rounding, or of what was
/// rounded (same_codes). A column with a NaN makes l[r] a NaN. Modes with blocks along the keys need a whole tile.
void column_round(PMode mode, float p_scale, bool same_codes, std::int64_t keys, std::int64_t width, float scale,
                  const float* m, const float* keep, float* x, float* l);

}  // namespace mpfa::cpu
