// How many query rows a block takes in one pass over its keys. A row tile is 8 rows, the columns of one MMA.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/operand.h"

namespace mpfa::sm90 {

/// Warps of a block, as many as registers and shared memory allow.
constexpr int decode_warps(int head_dim, int row_tiles) {
  if (head_dim > 128) return row_tiles == 1 ? 8 : 6;
  return row_tiles == 1 ? 16 : row_tiles == 2 ? 12 : 8;
}

/// The rank-one terms of nvfp4 K with e4m3 V and the outputs of head dim 256 leave no registers for 4 row tiles.
constexpr int most_row_tiles(int head_dim, OperandPair operands) {
  const bool terms = operands.key == Operand::nvfp4 && operands.value == Operand::e4m3;
  return head_dim > 128 || terms ? 2 : 4;
}

/// Row tiles of a block for `rows` query rows of one KV head.
constexpr std::int32_t choose_row_tiles(std::int32_t head_dim, OperandPair operands, std::int64_t rows) {
  return rows <= 8 ? 1 : rows <= 16 ? 2 : most_row_tiles(head_dim, operands);
}

/// Whether warps of four multiply K of plain pages together, see group_scores.cuh.
constexpr bool multiplies_in_groups(int head_dim, Operand key, int row_tiles) {
  return key == Operand::mxfp4 && head_dim <= 128 && row_tiles <= 2;
}

/// Whether the blocks of an output that are a cluster have room to merge through shared memory in a direct call.
constexpr bool has_clusters(int head_dim, OperandPair operands) {
  return head_dim <= 128 || operands != OperandPair{Operand::nvfp4, Operand::nvfp4};
}

/// Whether the blocks of a pair can merge through shared memory: more rows do not fit in the stages of a warp.
constexpr bool may_pair(std::int32_t row_tiles) {
  return row_tiles <= 2;
}

}  // namespace mpfa::sm90
