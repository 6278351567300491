// How P is rounded before P*V: the one plain statement of every PMode. Kernels may be faster, not different.
#pragma once

#include <cstdint>

#include "mpfa/recipe.hpp"

namespace mpfa {

/// Rounds the probabilities of one key tile of one row.
///   log2_p [n]  log2 of p relative to the running row maximum (<= 0); -inf where the key is masked
///   p_out  [n]  what P*V multiplies; exactly 0 where masked; NaN where the row holds a NaN
/// n <= kKeyTile, and log2_p[0] is the first key of a tile: blocks of 16 or 32 keys start there.
/// Methods: e4m3_loglin is ours; mxfp4_direct_* arXiv 2609.04105; nvfp4_two_level 2505.11594; nvfp4_underflow
/// 2611.09825.
void round_probabilities(PMode mode, float p_scale, const float* log2_p, float* p_out, std::int64_t n);

}  // namespace mpfa
