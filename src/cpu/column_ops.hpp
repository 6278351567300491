// Element-wise steps of a transposed tile x[keys][ld]: query rows lie along the lanes, ld is a multiple of
// kLaneMultiple. Compiled for every instruction set the compiler offers and chosen at run time.
#pragma once

#include <cstdint>

#include "mpfa/recipe.hpp"

namespace mpfa::cpu {

/// x *= scale (-inf stays); m[r] becomes max(m[r], column maximum) and keep[r] = exp2(old m - new m): 0 for a row that
/// had no key before, 1 for one that still has none. NaN scores do not count for the maximum.
void column_max(std::int64_t keys, std::int64_t ld, float scale, float* x, float* m, float* keep);

/// x = round(exp2(x - m)), 0 where masked; l[r] = l[r] * keep[r] + the sum before rounding, or of what was rounded
/// (same_codes). Modes without blocks along the keys: f32, bf16, e4m3.
void column_exp2(PMode mode, float p_scale, bool same_codes, std::int64_t keys, std::int64_t ld, const float* m,
                 const float* keep, float* x, float* l);

}  // namespace mpfa::cpu
