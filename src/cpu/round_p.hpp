// One row of a tile from logits to the probabilities that P*V multiplies.
#pragma once

#include "mpfa/attention.hpp"

namespace mpfa::cpu {

/// x[kKeyTile] holds log2-domain logits (-inf = masked); it becomes the rounded probabilities relative to `top`.
/// Returns what the row adds to its denominator: the sum before rounding, or of the rounded values (same_codes).
[[nodiscard]] float round_row(PMode mode, float p_scale, float top, bool same_codes, float* x);

}  // namespace mpfa::cpu
