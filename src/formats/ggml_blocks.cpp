// Conversions between our rows and ggml blocks, which keep scales and codes together.
#include <fmt/format.h>

#include <cstring>

#include "mpfa/layout.hpp"

namespace mpfa {
namespace {

constexpr std::int64_t kLargestExtent = std::int64_t{1} << 31;

/// A ggml block: `scales` scales of `scale_bytes`, each for `sub` channels, then the codes. One-byte scales from
/// `refused` on are NaN or negative. Codes are ours with the bits of `flip` inverted.
struct GgmlShape {
  std::string_view name;
  std::int64_t channels, sub, scales, scale_bytes, code_bits, refused;
  std::uint8_t flip;
  [[nodiscard]] constexpr std::int64_t code_bytes(std::int64_t n) const { return n * code_bits / 8; }
  [[nodiscard]] constexpr std::int64_t bytes() const { return scales * scale_bytes + code_bytes(channels); }
  /// Bytes of our codes and scales of a row.
  [[nodiscard]] constexpr std::int64_t row_scales(std::int64_t head_dim) const { return head_dim / sub * scale_bytes; }
};
constexpr GgmlShape ggml_shape(GgmlType t) {
  constexpr std::int64_t any = 0x100;
  switch (t) {
    case GgmlType::mxfp4: return {"mxfp4", 32, 32, 1, 1, 4, 0xFF, 0};
    case GgmlType::nvfp4: return {"nvfp4", 64, 16, 4, 1, 4, 0x7F, 0};
    case GgmlType::q8_0: return {"q8_0", 32, 32, 1, 2, 8, any, 0};
    case GgmlType::q4_0: break;
  }
  return {"q4_0", 32, 32, 1, 2, 4, any, 0x88};  // two's complement plus 8: the top bit flips
}

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

/// Rows of a call; both directions check the same things.
struct Rows {
  std::string_view call;
  std::int64_t rows, head_dim;
  const std::byte* codes;
  std::int64_t code_row_stride;
  const std::byte* scales;
  std::int64_t scale_row_stride;
  const std::byte* blocks;
  std::int64_t blocks_bytes;
};

Status check_rows(const Rows& r, GgmlType type) {
  const GgmlShape g = ggml_shape(type);
  if (r.rows < 0 || r.rows > kLargestExtent) {
    return invalid(fmt::format("{}: rows {} is out of range (0 to {} is allowed)", r.call, r.rows, kLargestExtent));
  }
  const Result<std::int64_t> row_bytes = ggml_row_bytes(type, r.head_dim);
  if (!row_bytes.ok()) return row_bytes.status();
  const std::int64_t needed = r.rows * row_bytes.value(), code_bytes = g.code_bytes(r.head_dim),
                     scale_bytes = g.row_scales(r.head_dim);
  if (r.blocks_bytes != needed) {
    return invalid(fmt::format("{}: blocks has {} bytes, {} rows of head_dim {} need {}", r.call, r.blocks_bytes,
                               r.rows, r.head_dim, needed));
  }
  if (r.rows > 0 && (r.codes == nullptr || r.scales == nullptr || r.blocks == nullptr)) {
    return invalid(fmt::format("{}: codes, scales or blocks is null; pass all three", r.call));
  }
  if (r.rows > 1 && (r.code_row_stride < code_bytes || r.scale_row_stride < scale_bytes)) {
    return invalid(fmt::format("{}: row strides {} and {} are smaller than a row ({} bytes of codes, {} of scales)",
                               r.call, r.code_row_stride, r.scale_row_stride, code_bytes, scale_bytes));
  }
  return {};
}

Status check_scale(std::string_view call, const GgmlShape& g, std::byte scale, std::int64_t row, std::int64_t index) {
  if (static_cast<std::int64_t>(scale) < g.refused) return {};
  return invalid(
      fmt::format("{}: scale byte 0x{:02X} (row {}, scale {}) is NaN or negative, which a ggml {} block cannot "
                  "hold; quantise finite values",
                  call, static_cast<unsigned>(scale), row, index, g.name));
}

/// Our codes of one sub-block <-> ggml's: of 4-bit codes, element i of the first half sits in a low nibble there.
void to_ggml(const GgmlShape& g, const std::byte* in, std::byte* out) {
  const std::int64_t n = g.code_bytes(g.sub);
  const auto code = [in](std::int64_t i) { return static_cast<unsigned>(in[i / 2]) >> (i % 2 * 4) & 15U; };
  for (std::int64_t j = 0; j < n; ++j) {
    out[j] = (g.code_bits == 8 ? in[j] : static_cast<std::byte>(code(j) | code(j + n) << 4)) ^ std::byte{g.flip};
  }
}
void from_ggml(const GgmlShape& g, const std::byte* in, std::byte* out) {
  const std::int64_t n = g.code_bytes(g.sub);
  const auto code = [in, n](std::int64_t i) { return static_cast<unsigned>(in[i % n]) >> (i / n * 4) & 15U; };
  for (std::int64_t j = 0; j < n; ++j) {
    out[j] =
        (g.code_bits == 8 ? in[j] : static_cast<std::byte>(code(2 * j) | code(2 * j + 1) << 4)) ^ std::byte{g.flip};
  }
}

/// Where scale `s` of row `r` and its codes lie.
struct SubBlock {
  std::int64_t scale, codes;          // in the ggml blocks
  std::int64_t our_scale, our_codes;  // from the start of our rows
};
SubBlock sub_block(const GgmlShape& g, std::int64_t per_row, std::int64_t r, std::int64_t s) {
  const std::int64_t block = (r * per_row + s) / g.scales * g.bytes(), i = s % g.scales;
  return {block + i * g.scale_bytes, block + g.scales * g.scale_bytes + i * g.code_bytes(g.sub), s * g.scale_bytes,
          s * g.code_bytes(g.sub)};
}

}  // namespace

Result<std::int64_t> ggml_row_bytes(GgmlType type, std::int64_t head_dim) {
  const GgmlShape g = ggml_shape(type);
  if (head_dim < 1 || head_dim > kLargestExtent || head_dim % g.channels != 0) {
    return invalid(fmt::format("ggml {}: head_dim {} is not supported (a positive multiple of {} is needed)", g.name,
                               head_dim, g.channels));
  }
  return head_dim / g.channels * g.bytes();
}

Status to_ggml_blocks(GgmlType type, std::int64_t rows, std::int64_t head_dim, const std::byte* codes,
                      std::int64_t code_row_stride, const std::byte* scales, std::int64_t scale_row_stride,
                      std::byte* blocks, std::int64_t blocks_bytes) {
  constexpr std::string_view call = "to_ggml_blocks";
  MPFA_RETURN_IF_ERROR(
      check_rows({call, rows, head_dim, codes, code_row_stride, scales, scale_row_stride, blocks, blocks_bytes}, type));
  const GgmlShape g = ggml_shape(type);
  const std::int64_t per_row = head_dim / g.sub;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < per_row; ++s) {
      MPFA_RETURN_IF_ERROR(check_scale(call, g, scales[r * scale_row_stride + s * g.scale_bytes], r, s));
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < per_row; ++s) {
      const SubBlock at = sub_block(g, per_row, r, s);
      std::memcpy(blocks + at.scale, scales + r * scale_row_stride + at.our_scale,
                  static_cast<std::size_t>(g.scale_bytes));
      to_ggml(g, codes + r * code_row_stride + at.our_codes, blocks + at.codes);
    }
  }
  return {};
}

Status from_ggml_blocks(GgmlType type, std::int64_t rows, std::int64_t head_dim, const std::byte* blocks,
                        std::int64_t blocks_bytes, std::byte* codes, std::int64_t code_row_stride, std::byte* scales,
                        std::int64_t scale_row_stride) {
  constexpr std::string_view call = "from_ggml_blocks";
  MPFA_RETURN_IF_ERROR(
      check_rows({call, rows, head_dim, codes, code_row_stride, scales, scale_row_stride, blocks, blocks_bytes}, type));
  const GgmlShape g = ggml_shape(type);
  const std::int64_t per_row = head_dim / g.sub;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < per_row; ++s) {
      MPFA_RETURN_IF_ERROR(check_scale(call, g, blocks[sub_block(g, per_row, r, s).scale], r, s));
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < per_row; ++s) {
      const SubBlock at = sub_block(g, per_row, r, s);
      std::memcpy(scales + r * scale_row_stride + at.our_scale, blocks + at.scale,
                  static_cast<std::size_t>(g.scale_bytes));
      from_ggml(g, blocks + at.codes, codes + r * code_row_stride + at.our_codes);
    }
  }
  return {};
}

}  // namespace mpfa
