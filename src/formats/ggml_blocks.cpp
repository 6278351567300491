// Conversions between our rows and ggml blocks, which keep scales and codes together.
#include <fmt/format.h>

#include "mpfa/layout.hpp"

namespace mpfa {
namespace {

constexpr std::int64_t kLargestExtent = std::int64_t{1} << 31;

/// A ggml block: `scales` scale bytes, each for `sub` channels, then the codes. Scale bytes from `refused` on are NaN
/// or negative.
struct GgmlShape {
  std::string_view name;
  std::int64_t channels, sub, scales, refused;
  [[nodiscard]] constexpr std::int64_t bytes() const { return scales + channels / 2; }
};
constexpr GgmlShape ggml_shape(GgmlType t) {
  return t == GgmlType::mxfp4 ? GgmlShape{"mxfp4", 32, 32, 1, 0xFF} : GgmlShape{"nvfp4", 64, 16, 4, 0x7F};
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
  const std::int64_t needed = r.rows * row_bytes.value(), code_bytes = r.head_dim / 2, scale_bytes = r.head_dim / g.sub;
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

/// Our bytes of one sub-block <-> ggml's: element i of the first half sits in a low nibble there.
void to_split(const std::byte* in, std::int64_t sub, std::byte* out) {
  const auto code = [in](std::int64_t i) { return static_cast<unsigned>(in[i / 2]) >> (i % 2 * 4) & 15U; };
  for (std::int64_t j = 0; j < sub / 2; ++j) out[j] = static_cast<std::byte>(code(j) | code(j + sub / 2) << 4);
}
void to_interleaved(const std::byte* in, std::int64_t sub, std::byte* out) {
  const std::int64_t half = sub / 2;
  const auto code = [in, half](std::int64_t i) { return static_cast<unsigned>(in[i % half]) >> (i / half * 4) & 15U; };
  for (std::int64_t j = 0; j < half; ++j) out[j] = static_cast<std::byte>(code(2 * j) | code(2 * j + 1) << 4);
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
  const std::int64_t scales_per_row = head_dim / g.sub;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < scales_per_row; ++s) {
      MPFA_RETURN_IF_ERROR(check_scale(call, g, scales[r * scale_row_stride + s], r, s));
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < scales_per_row; ++s) {
      std::byte* block = blocks + (r * scales_per_row + s) / g.scales * g.bytes();
      block[s % g.scales] = scales[r * scale_row_stride + s];
      to_split(codes + r * code_row_stride + s * g.sub / 2, g.sub, block + g.scales + s % g.scales * g.sub / 2);
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
  const std::int64_t scales_per_row = head_dim / g.sub;
  const auto block_of = [&](std::int64_t r, std::int64_t s) {
    return blocks + (r * scales_per_row + s) / g.scales * g.bytes();
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < scales_per_row; ++s) {
      MPFA_RETURN_IF_ERROR(check_scale(call, g, block_of(r, s)[s % g.scales], r, s));
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < scales_per_row; ++s) {
      const std::byte* block = block_of(r, s);
      scales[r * scale_row_stride + s] = block[s % g.scales];
      to_interleaved(block + g.scales + s % g.scales * g.sub / 2, g.sub, codes + r * code_row_stride + s * g.sub / 2);
    }
  }
  return {};
}

}  // namespace mpfa
