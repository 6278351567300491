// What the kernel for many rows is built for.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/sm90/decode/operand.h"

namespace mpfa::sm90 {

inline constexpr int kExpandRows = 64;  // of a warpgroup: the least that its MMAs have
/// Keys of a tile: 32 KB of K and V in 16 bits, of which there is room for five.
constexpr int expand_keys(std::int64_t head_dim) {
  return head_dim > 128 ? 32 : 64;
}

inline constexpr std::array kExpandPairs{
    OperandPair{Operand::mxfp4, Operand::mxfp4}, OperandPair{Operand::nvfp4, Operand::nvfp4},
    OperandPair{Operand::nvfp4, Operand::e4m3},  OperandPair{Operand::e4m3, Operand::e4m3},
    OperandPair{Operand::int8, Operand::int8},   OperandPair{Operand::fp4_f32, Operand::fp4_f32},
    OperandPair{Operand::int4, Operand::int4},   OperandPair{Operand::bf16, Operand::bf16},
};

/// Whether there is a kernel, for P in 16 bits and queries as they are or rounded to 8 bits.
constexpr bool has_expand_kernel(std::int64_t head_dim, OperandPair operands) {
  for (const OperandPair pair : kExpandPairs) {
    if (head_dim == 128 && operands == pair) return true;
  }
  return head_dim == 256 && operands == OperandPair{Operand::bf16, Operand::bf16};
}
/// Whether with blocks of so many times 64 rows: of 16 bits 64 rows of 128 channels are for the verify kernel, and of
/// 256 channels 128 rows do not fit.
constexpr bool has_expand_blocks(std::int64_t head_dim, OperandPair operands, std::int32_t row_blocks) {
  return operand_info(operands.key).bits < 16 || row_blocks == (head_dim > 128 ? 1 : 2);
}

/// Whether any number of rows is for it: of 256 channels in 16 bits there is no verify kernel, and the decode kernel
/// has few warps.
constexpr bool expands_all_rows(std::int64_t head_dim, OperandPair operands) {
  return head_dim == 256 && has_expand_kernel(head_dim, operands);
}
/// Whether it reaches pages at any distance, and not as verify/shapes.h says of others.
constexpr bool expand_reaches_all(OperandPair operands) {
  return operand_info(operands.key).bits == 16;
}

/// Row tiles of 8 of a block, of 64 rows or 128, for `outputs` KV heads of sequences with `rows` rows each. Blocks of
/// 128 expand codes once for all of them, but have half as many pieces, whose ends take as long as 64 tiles together.
/// fixed: the choice must not depend on other sequences.
constexpr std::int32_t expand_row_tiles(std::int64_t rows, std::int64_t outputs, std::int64_t keys,
                                        std::int64_t multiprocessors, bool fixed) {
  constexpr std::int64_t kBlock = 2 * kExpandRows, kTiles = 64;
  const std::int64_t tiles = outputs * ((rows + kBlock - 1) / kBlock) * (keys / expand_keys(128));
  const bool two = rows > kExpandRows && (fixed || tiles >= kTiles * multiprocessors);
  return kExpandRows / 8 * (two ? 2 : 1);
}

/// Whether it is the fastest kernel for so many rows: more than 32, beside K of 8 and 16 bits in blocks of 128.
constexpr bool is_expand_faster(std::int64_t rows, OperandPair operands, std::int32_t row_tiles) {
  return rows > 32 && (operand_info(operands.key).bits == 4 || row_tiles * 8 > kExpandRows);
}

}  // namespace mpfa::sm90
