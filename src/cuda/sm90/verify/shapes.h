// What the verify kernel is built for.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/operand.h"
#include "mpfa/formats.hpp"

namespace mpfa::sm90 {

inline constexpr int kVerifyKeys = 64;  // of a tile: a warpgroup's
inline constexpr int kVerifyPage = 16;  // keys of a warp, which lie in one page: pages are a multiple

/// What a kernel has code for: nothing rare; the same in clusters; mask tensors, softcap and ALiBi; P in e4m3. The last
/// two merge in clusters too. Clusters and masks are of one team.
enum class VerifyCase { plain, merging, masked, rounded };

/// Warpgroups of a block, as registers for outputs and, of 16-bit values, shared memory allow.
constexpr int verify_groups(std::int64_t head_dim, int row_tiles, Operand value) {
  const int bits = operand_info(value).bits;
  if (head_dim > 128) return bits == 4 && row_tiles <= 2 ? 3 : 2;
  if (row_tiles <= 2 || (row_tiles <= 4 && head_dim < 128 && bits == 4)) return 4;
  return row_tiles <= 4 && (bits < 16 || head_dim < 128) ? 3 : 2;
}
/// The pair of recipe `mpfa`.
inline constexpr OperandPair kMixedPair{Operand::nvfp4, Operand::e4m3};

/// Whether there is a verify kernel; of 64 and 256 channels there are those without mask tensors and with P in 16 bits.
constexpr bool has_verify_kernel(std::int64_t head_dim, OperandPair operands) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return false;
  if (head_dim == 256 && operands.value == Operand::bf16) return false;
  return operands.key == operands.value || operands == kMixedPair;
}
/// Whether up to kFewRows rows of 256 channels are: the decode kernel has six or eight warps then, and merges what each
/// of them has. As measured; the verify kernel's time does not depend on the rows.
inline constexpr std::int64_t kFewRows = 8;
constexpr bool is_verify_faster_for_few(std::int64_t rows, OperandPair operands, std::int64_t outputs,
                                        std::int64_t keys, std::int64_t blocks) {
  const bool most = rows > 6;
  switch (operands.value) {
    case Operand::int8: return outputs >= 32 || (rows > 4 && (most || outputs >= 8));
    case Operand::e4m3: return most || (rows > 4 && outputs >= 8);
    case Operand::nvfp4: return most && 2 * outputs <= blocks;
    case Operand::int4: return most && outputs >= 16;
    case Operand::mxfp4: return most && outputs <= 2 && keys >= 4096;
    default: return false;
  }
}
/// Whether it is faster than the decode kernel for so many rows of up to `keys` and `outputs`, sequences times KV
/// heads, on `blocks`.
constexpr bool is_verify_faster(std::int64_t head_dim, std::int64_t rows, OperandPair operands, std::int64_t outputs,
                                std::int64_t keys, std::int64_t blocks) {
  if (rows <= kFewRows) return head_dim == 256 && is_verify_faster_for_few(rows, operands, outputs, keys, blocks);
  return rows > 16 || head_dim != 64 || outputs > blocks;
}
/// Whether it adds rank-one terms of `group` query heads: all row tiles of a block have theirs in the same columns.
constexpr bool has_verify_terms(std::int64_t group) {
  return group == 2 || group == 4 || group == 8;
}
inline constexpr std::int32_t kTermUnit = 64;  // bytes that divide the terms of 16 keys of these, and steps of pages

/// Whether it takes pages of `page_size` tokens.
constexpr bool has_verify_pages(std::int64_t page_size) {
  return page_size % kVerifyPage == 0;
}
/// Whether it takes a format with these bytes of scales of a token, which it copies by words or, with 64 channels, as
/// half of one: 8-bit formats have one scale.
constexpr bool has_verify_format(const BlockFormat& f, std::int64_t head_dim, std::int64_t scale_bytes) {
  const bool words = scale_bytes % 4 == 0 || (head_dim == 64 && scale_bytes == 2);
  return words && (f.element != Element::int8 || f.block_channels == 0);
}

/// The largest power of two that divides steps of pages and of 16 rows, or 2^16. The kernel counts in it, so that 32
/// bits say where a page lies.
constexpr std::int32_t stride_unit(std::int64_t page, std::int64_t row) {
  const std::int64_t all = page | row * kVerifyPage | 1 << 16;
  return static_cast<std::int32_t>(all & -all);
}

/// Whether there is one with mask tensors, softcap and ALiBi.
constexpr bool has_masked_verify_kernel(std::int64_t head_dim, OperandPair operands) {
  return head_dim == 128 && operands.key == operands.value &&
         (operands.key == Operand::mxfp4 || operands.key == Operand::nvfp4 || operands.key == Operand::e4m3 ||
          operands.key == Operand::bf16);
}
/// Most row tiles of it: with the mask of 64 rows there is no memory for two stages of 16 bits.
constexpr std::int32_t most_masked_row_tiles(OperandPair operands) {
  return operand_info(operands.value).bits == 16 ? 4 : 8;
}

/// Row tiles of 8 of a block for `rows` query rows of one KV head; the decode kernel has those of 8.
constexpr std::int32_t verify_row_tiles(std::int64_t head_dim, std::int64_t rows, OperandPair operands) {
  const int most_bits = head_dim == 128 ? 4 : 8;
  if (rows <= 16 && operand_info(operands.key).bits <= most_bits) return 2;
  return rows <= 32 || head_dim > 128 ? 4 : 8;
}
/// The same for `outputs`, sequences times KV heads, of up to `keys`, on `blocks`. Where many blocks share one of few
/// outputs, merging what they have takes longer than several passes over few keys: then there are more row blocks of
/// fewer rows.
constexpr std::int32_t verify_row_tiles(std::int64_t head_dim, std::int64_t rows, OperandPair operands,
                                        std::int64_t outputs, std::int64_t keys, std::int64_t blocks) {
  constexpr std::int64_t kTiles = 24;  // of a block: with more of them passes over the keys take longer
  std::int32_t tiles = verify_row_tiles(head_dim, rows, operands);
  while (tiles > verify_row_tiles(head_dim, 9, operands) && outputs * (keys / kVerifyKeys) <= kTiles * blocks) {
    const std::int64_t half = tiles / 2, row_blocks = (rows + 8 * half - 1) / (8 * half);
    if (8 * outputs * row_blocks > blocks * half) break;
    tiles = static_cast<std::int32_t>(half);
  }
  return tiles;
}

/// Teams of a block for `outputs`: two, or as many as there are warpgroups, when outputs are more than blocks.
constexpr std::int32_t verify_teams(std::int64_t head_dim, std::int32_t row_tiles, Operand value, std::int64_t outputs,
                                    std::int64_t blocks) {
  const std::int32_t groups = verify_groups(head_dim, row_tiles, value);
  if (outputs <= blocks) return 1;
  if (outputs > 2 * blocks) return groups;
  if (groups != 3) return 2;
  // Blocks with two whole outputs each have one team. Otherwise three teams have two or three pieces of an output; with
  // few outputs that costs more than it saves, and for scales of groups and 8 bits it was not faster.
  const bool whole = 17 * outputs >= 16 * 2 * blocks, pieces = 3 * outputs >= 4 * blocks;
  const bool fp4 = head_dim == 128 && (value == Operand::mxfp4 || value == Operand::nvfp4);
  return fp4 && pieces && !whole ? 3 : 1;
}

/// How scales act: those of int8 are of whole tokens here.
constexpr ScaleKind verify_scale(Operand o) {
  return o == Operand::int8 ? ScaleKind::row : operand_info(o).scale;
}
/// Whether there is one with P in e4m3.
constexpr bool has_rounded_verify_kernel(std::int64_t head_dim, OperandPair operands) {
  return head_dim == 128 && operands.value == Operand::e4m3;
}
/// What P is multiplied by before it is rounded to e4m3, in a recipe that does so with weights of up to 1 and
/// `p_scale`. P is a quarter at a maximum that was just taken, and below 2 at any.
constexpr float verify_p_scale(float p_scale) {
  return p_scale > 256.0F ? p_scale / 2.0F : p_scale < 32.0F ? 4.0F * p_scale : 128.0F;
}
/// Room for the scales of a token and head: a word at least, if there are any.
constexpr int scale_room(Operand o, int head_dim) {
  switch (verify_scale(o)) {
    case ScaleKind::none: return 0;
    case ScaleKind::e8m0: return head_dim < 128 ? 4 : head_dim / 32;
    case ScaleKind::e4m3: return head_dim / 16;
    case ScaleKind::group: return o == Operand::fp4_f32 ? head_dim / 8 : head_dim / 16;
    default: return 4;
  }
}

}  // namespace mpfa::sm90
