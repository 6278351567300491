// What the verify kernel is built for.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/operand.h"

namespace mpfa::sm90 {

inline constexpr int kVerifyKeys = 64;  // of a tile: a warpgroup's
inline constexpr int kVerifyPage = 16;  // keys of a warp, which lie in one page: pages are a multiple

/// Warpgroups of a block, as registers allow.
constexpr int verify_groups(int row_tiles) {
  return row_tiles <= 2 ? 4 : row_tiles <= 4 ? 3 : 2;
}
/// Whether there is a verify kernel.
constexpr bool has_verify_kernel(std::int64_t head_dim, OperandPair operands) {
  return head_dim == 128 && operands.key == operands.value && operand_info(operands.key).bits == 4;
}

/// Whether it takes pages of `page_size` tokens with these bytes of scales of a token, which it copies by words.
constexpr bool has_verify_pages(std::int64_t page_size, std::int64_t key_scale_bytes, std::int64_t value_scale_bytes) {
  return page_size % kVerifyPage == 0 && key_scale_bytes % 4 == 0 && value_scale_bytes % 4 == 0;
}

/// Whether there is one with mask tensors, softcap and ALiBi.
constexpr bool has_masked_verify_kernel(std::int64_t head_dim, OperandPair operands) {
  return has_verify_kernel(head_dim, operands) && operands.key == operands.value &&
         (operands.key == Operand::mxfp4 || operands.key == Operand::nvfp4);
}

/// Row tiles of 8 of a block for `rows` query rows of one KV head; up to 8 rows are for the decode kernel.
constexpr std::int32_t verify_row_tiles(std::int64_t rows) {
  return rows <= 16 ? 2 : rows <= 32 ? 4 : 8;
}

/// Teams of a block for `outputs`: two, or as many as there are warpgroups, when outputs are more than blocks.
constexpr std::int32_t verify_teams(std::int32_t row_tiles, std::int64_t outputs, std::int64_t blocks) {
  const std::int32_t groups = verify_groups(row_tiles);
  if (outputs <= blocks) return 1;
  return outputs <= 2 * blocks ? (groups == 3 ? 1 : 2) : groups;
}

/// Room for the scales of a token and head.
constexpr int scale_room(Operand o, int head_dim) {
  switch (operand_info(o).scale) {
    case ScaleKind::e8m0: return head_dim / 32;
    case ScaleKind::e4m3: return head_dim / 16;
    case ScaleKind::group: return o == Operand::fp4_f32 ? head_dim / 8 : head_dim / 16;
    default: return 4;
  }
}

}  // namespace mpfa::sm90
