// What the kernel for many rows is built for.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/operand.h"

namespace mpfa::sm90 {

inline constexpr int kExpandKeys = 64;  // of a tile
inline constexpr int kExpandRows = 64;  // of a warpgroup: the least that its MMAs have

inline constexpr int kExpandFrom = 32;  // with more rows than this it is the fastest kernel

/// Whether there is a kernel.
constexpr bool has_expand_kernel(std::int64_t head_dim, OperandPair operands) {
  return head_dim == 128 && operands.key == operands.value &&
         (operands.key == Operand::mxfp4 || operands.key == Operand::nvfp4);
}

/// Row tiles of 8 of a block, of 64 rows or 128, for `outputs` KV heads of sequences with `rows` rows each. Blocks of
/// 128 expand codes once for all of them, but have half as many pieces, whose ends take as long as 64 tiles together.
/// fixed: the choice must not depend on other sequences.
constexpr std::int32_t expand_row_tiles(std::int64_t rows, std::int64_t outputs, std::int64_t keys,
                                        std::int64_t multiprocessors, bool fixed) {
  constexpr std::int64_t kBlock = 2 * kExpandRows, kTiles = 64;
  const std::int64_t tiles = outputs * ((rows + kBlock - 1) / kBlock) * (keys / kExpandKeys);
  const bool two = rows > kExpandRows && (fixed || tiles >= kTiles * multiprocessors);
  return kExpandRows / 8 * (two ? 2 : 1);
}

}  // namespace mpfa::sm90
