// Block factors of a run of tokens, transposed: [blocks, kKeyTile], so that a vector holds one block of adjoining keys.
#pragma once

#include <cstdint>

#include "mpfa/attention.hpp"
#include "mpfa/formats.hpp"

namespace mpfa::cpu {

/// Scale rows of adjoining tokens.
struct ScaleRows {
  const std::byte* bytes = nullptr;
  std::int64_t stride = 0, blocks = 0, count = 0;
  float multiplier = 1.0F, divisor = 1.0F;  // of every factor
};

/// factors[b * kKeyTile + j] = factor of block b of slot + j, for j in [0, count), count <= kKeyTile; what lies behind
/// in a column is unspecified. minima [kKeyTile] for formats that have one. `spare` holds [count, blocks] floats.
void read_factor_columns(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                         const ConstPageBytes& page, float global, float* factors, float* minima, float* spare);

/// The same for rows that adjoin and a count that is a multiple of 16, without looking anything up.
using WholeFactors = void (*)(const std::byte* rows, std::int64_t count, float* factors);
/// Null when the format, the stride of its rows or a scale for all of them needs the other function.
[[nodiscard]] WholeFactors whole_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t row_stride,
                                         float global);

}  // namespace mpfa::cpu
