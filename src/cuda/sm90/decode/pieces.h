// How many pieces an output is worth.
// n pieces of an output take tiles / n + n * merge_tiles, which is least for n = sqrt(tiles / merge_tiles).
#pragma once

#include <cmath>
#include <cstdint>

#include "formats/elements.hpp"

namespace mpfa::sm90 {

/// Pieces that an output of so many tiles should not exceed.
MPFA_HD inline std::int32_t useful_splits(std::int32_t tiles, float merge_tiles) {
  const auto n = static_cast<std::int32_t>(sqrtf(static_cast<float>(tiles) / merge_tiles));
  return n > 1 ? n : 1;
}
/// Tiles that a piece of it should have.
MPFA_HD inline std::int32_t useful_tiles(std::int32_t tiles, float merge_tiles) {
  return static_cast<std::int32_t>(sqrtf(static_cast<float>(tiles) * merge_tiles));
}

}  // namespace mpfa::sm90
