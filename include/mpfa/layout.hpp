// Packed layouts of other software, and conversions to and from ours (nibbles interleaved, scales linear).
//
// Every function checks sizes and writes nothing when it returns an error. Input and output must not overlap unless
// said otherwise. Rows are tokens for caches, output channels for weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "mpfa/status.hpp"

namespace mpfa {

/// Where the elements of a block of n 4-bit codes sit.
enum class NibbleOrder : std::uint8_t {
  interleaved,  // byte j: element 2j low, 2j + 1 high
  split,        // byte j: element j low, j + n/2 high (n = 32 for mxfp4, 16 for nvfp4)
};

/// Where the one-byte scale of (row, block) sits; rows x blocks bytes unless padded.
enum class ScaleLayout : std::uint8_t {
  linear,         // row * blocks + block
  tile_128x4,     // 512-byte tiles of 128 rows x 4 blocks, tiles in row-major order; both padded up with zero bytes.
                  // In a tile: (row % 32) * 16 + row / 32 * 4 + block (what block-scaled tensor-core GEMMs load)
  page_swizzle4,  // a page's rows in groups of 4, which trade places with the quarters of the blocks: byte
                  // (row/4*4 + block/(blocks/4)) * blocks + block % (blocks/4) * 4 + row % 4 (V scales of vLLM pages)
};

/// ggml blocks: scale bytes and codes together; 4-bit codes in split order.
enum class GgmlType : std::uint8_t {
  mxfp4,  // 17 bytes for 32 channels: e8m0 scale, 16 bytes of codes
  nvfp4,  // 36 bytes for 64 channels: 4 e4m3 scales, then 4 x 8 bytes of codes
  q8_0,   // 34 bytes for 32 channels: fp16 scale, 32 int8; our int8_g32
  q4_0,   // 18 bytes for 32 channels: fp16 scale, 16 bytes of codes, stored plus 8; our int4_g32
};

[[nodiscard]] std::string_view nibble_order_name(NibbleOrder order);
[[nodiscard]] std::string_view scale_layout_name(ScaleLayout layout);
[[nodiscard]] Result<NibbleOrder> parse_nibble_order(std::string_view name);
[[nodiscard]] Result<ScaleLayout> parse_scale_layout(std::string_view name);

/// Reorders `elements` codes in blocks of `block` (even, divides elements). in and out hold elements / 2 bytes and may
/// be the same.
[[nodiscard]] Status convert_nibbles(NibbleOrder from, NibbleOrder to, std::int64_t block, std::int64_t elements,
                                     const std::byte* in, std::byte* out);

/// Bytes of rows x blocks scales in a layout; the error says which multiple a dimension must have.
[[nodiscard]] Result<std::int64_t> scale_layout_bytes(ScaleLayout layout, std::int64_t rows, std::int64_t blocks);

/// Moves one-byte scales between layouts. in_bytes and out_bytes must be what scale_layout_bytes says.
[[nodiscard]] Status convert_scales(ScaleLayout from, ScaleLayout to, std::int64_t rows, std::int64_t blocks,
                                    const std::byte* in, std::int64_t in_bytes, std::byte* out, std::int64_t out_bytes);

/// Bytes of one row of head_dim channels (a multiple of 32, nvfp4: of 64) in ggml blocks.
[[nodiscard]] Result<std::int64_t> ggml_row_bytes(GgmlType type, std::int64_t head_dim);

/// Rows of ours (page_geometry of the format, global scale 1) to ggml blocks, rows without padding. For mxfp4 and nvfp4
/// refuses NaN scales and negative ones: ggml has neither (it reads a NaN scale as a number).
[[nodiscard]] Status to_ggml_blocks(GgmlType type, std::int64_t rows, std::int64_t head_dim, const std::byte* codes,
                                    std::int64_t code_row_stride, const std::byte* scales,
                                    std::int64_t scale_row_stride, std::byte* blocks, std::int64_t blocks_bytes);

/// The inverse of to_ggml_blocks, with the same refusals.
[[nodiscard]] Status from_ggml_blocks(GgmlType type, std::int64_t rows, std::int64_t head_dim, const std::byte* blocks,
                                      std::int64_t blocks_bytes, std::byte* codes, std::int64_t code_row_stride,
                                      std::byte* scales, std::int64_t scale_row_stride);

}  // namespace mpfa
