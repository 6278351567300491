// 4-bit token rows for kernels that expand them in registers: the 16 element values, and the block factors apart.
#pragma once

#include <array>
#include <cstdint>

#include "mpfa/formats.hpp"

namespace mpfa::formats {

/// value = table[code] * factor[channel / block].
struct NibbleFormat {
  const std::array<float, 16>* table = nullptr;  // null: the format is not of this kind
  std::int64_t block = 0;                        // channels per factor
};

/// Formats whose rows are single tokens of 4-bit codes with a factor per block of channels and no minimum.
[[nodiscard]] NibbleFormat nibble_format(const BlockFormat& f, std::int64_t head_dim);

/// Factors of slots [slot, slot + count): [count, head_dim / block]. False when one of them is not finite.
[[nodiscard]] bool read_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                                ConstPageBytes page, float global, float* factors);

}  // namespace mpfa::formats
