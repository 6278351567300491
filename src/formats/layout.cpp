// Conversions between nibble orders and between scale layouts.
#include "mpfa/layout.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>

namespace mpfa {
namespace {

constexpr std::int64_t kTileRows = 128, kTileBlocks = 4, kTileBytes = 512;
/// Largest rows, blocks or elements: products of two stay inside 64 bits.
constexpr std::int64_t kLargestExtent = std::int64_t{1} << 31;
/// Most elements of a call: rounding up to whole blocks stays inside 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 62;

template <class Enum, std::size_t kCount>
struct Names {
  std::string_view what;
  std::array<std::string_view, kCount> names;

  std::string_view name(Enum e) const {
    const auto i = static_cast<std::size_t>(e);
    return i < kCount ? names[i] : "unknown";
  }
  Result<Enum> parse(std::string_view text) const {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (names[i] == text) return static_cast<Enum>(i);
    }
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} '{}' is not known; use one of: {}", what, text, fmt::join(names, ", ")));
  }
};
constexpr Names<NibbleOrder, 2> kOrders{"nibble order", {"interleaved", "split"}};
constexpr Names<ScaleLayout, 3> kLayouts{"scale layout", {"linear", "tile_128x4", "page_swizzle4"}};

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

Status check_extent(std::string_view call, std::string_view what, std::int64_t n) {
  if (n >= 0 && n <= kLargestExtent) return {};
  return invalid(fmt::format("{}: {} {} is out of range (0 to {} is allowed)", call, what, n, kLargestExtent));
}

Status check_buffer(std::string_view call, std::string_view what, const std::byte* data, std::int64_t given,
                    std::int64_t needed) {
  if (given != needed) {
    return invalid(fmt::format("{}: {} has {} bytes, the sizes given need {}", call, what, given, needed));
  }
  if (data == nullptr && needed > 0) {
    return invalid(fmt::format("{}: {} is null; pass {} bytes", call, what, needed));
  }
  return {};
}

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

std::int64_t scale_offset(ScaleLayout layout, std::int64_t blocks, std::int64_t row, std::int64_t block) {
  switch (layout) {
    case ScaleLayout::linear: break;
    case ScaleLayout::tile_128x4: {
      const std::int64_t tiles_per_row = round_up(blocks, kTileBlocks) / kTileBlocks;
      const std::int64_t tile = row / kTileRows * tiles_per_row + block / kTileBlocks, m = row % kTileRows;
      return tile * kTileBytes + m % 32 * 16 + m / 32 * 4 + block % kTileBlocks;
    }
    case ScaleLayout::page_swizzle4: {
      const std::int64_t quarter = blocks / 4;
      return (row / 4 * 4 + block / quarter) * blocks + block % quarter * 4 + row % 4;
    }
  }
  return row * blocks + block;
}

std::uint8_t nibble(NibbleOrder order, const std::byte* p, std::int64_t block, std::int64_t i) {
  const std::int64_t half = block / 2;
  const bool high = order == NibbleOrder::split ? i >= half : i % 2 != 0;
  const auto byte = static_cast<std::uint8_t>(p[order == NibbleOrder::split ? i % half : i / 2]);
  return static_cast<std::uint8_t>(high ? byte >> 4 : byte & 15U);
}

/// One block; `from` and `to` differ and so do in and out.
void reorder(NibbleOrder from, NibbleOrder to, std::int64_t block, const std::byte* in, std::byte* out) {
  const std::int64_t half = block / 2;
  for (std::int64_t j = 0; j < half; ++j) {
    const std::int64_t low = to == NibbleOrder::split ? j : 2 * j,
                       high = to == NibbleOrder::split ? j + half : 2 * j + 1;
    out[j] = static_cast<std::byte>(nibble(from, in, block, low) | nibble(from, in, block, high) << 4);
  }
}

}  // namespace

std::string_view nibble_order_name(NibbleOrder order) {
  return kOrders.name(order);
}
std::string_view scale_layout_name(ScaleLayout layout) {
  return kLayouts.name(layout);
}
Result<NibbleOrder> parse_nibble_order(std::string_view name) {
  return kOrders.parse(name);
}
Result<ScaleLayout> parse_scale_layout(std::string_view name) {
  return kLayouts.parse(name);
}

Status convert_nibbles(NibbleOrder from, NibbleOrder to, std::int64_t block, std::int64_t elements, const std::byte* in,
                       std::byte* out) {
  constexpr std::int64_t largest = 256;
  if (block < 2 || block > largest || block % 2 != 0) {
    return invalid(fmt::format("convert_nibbles: block {} is not an even number from 2 to {}; mxfp4 has 32, nvfp4 16",
                               block, largest));
  }
  if (elements < 0 || elements > kMostElements) {
    return invalid(
        fmt::format("convert_nibbles: elements {} is out of range (0 to {} is allowed)", elements, kMostElements));
  }
  if (elements % block != 0) {
    return invalid(fmt::format("convert_nibbles: {} elements are not whole blocks of {}; pad to {}", elements, block,
                               round_up(elements, block)));
  }
  if (elements > 0 && (in == nullptr || out == nullptr)) {
    return invalid(fmt::format("convert_nibbles: in or out is null; pass {} bytes each", elements / 2));
  }
  std::array<std::byte, largest / 2> copy;
  for (std::int64_t at = 0; at < elements / 2; at += block / 2) {
    std::memcpy(copy.data(), in + at, static_cast<std::size_t>(block / 2));
    if (from == to) {
      std::memcpy(out + at, copy.data(), static_cast<std::size_t>(block / 2));
    } else {
      reorder(from, to, block, copy.data(), out + at);
    }
  }
  return {};
}

Result<std::int64_t> scale_layout_bytes(ScaleLayout layout, std::int64_t rows, std::int64_t blocks) {
  MPFA_RETURN_IF_ERROR(check_extent("scale_layout_bytes", "rows", rows));
  MPFA_RETURN_IF_ERROR(check_extent("scale_layout_bytes", "blocks", blocks));
  if (layout == ScaleLayout::tile_128x4) return round_up(rows, kTileRows) * round_up(blocks, kTileBlocks);
  if (layout == ScaleLayout::page_swizzle4 && (rows % 4 != 0 || blocks % 4 != 0)) {
    return invalid(
        fmt::format("scale layout page_swizzle4: {} rows x {} blocks do not fit (both must be multiples of 4: "
                    "pages of 4 n tokens, head_dim of 64 n); use linear",
                    rows, blocks));
  }
  return rows * blocks;
}

Status convert_scales(ScaleLayout from, ScaleLayout to, std::int64_t rows, std::int64_t blocks, const std::byte* in,
                      std::int64_t in_bytes, std::byte* out, std::int64_t out_bytes) {
  const Result<std::int64_t> needed_in = scale_layout_bytes(from, rows, blocks);
  if (!needed_in.ok()) return needed_in.status();
  const Result<std::int64_t> needed_out = scale_layout_bytes(to, rows, blocks);
  if (!needed_out.ok()) return needed_out.status();
  MPFA_RETURN_IF_ERROR(check_buffer("convert_scales", "in", in, in_bytes, needed_in.value()));
  MPFA_RETURN_IF_ERROR(check_buffer("convert_scales", "out", out, out_bytes, needed_out.value()));
  if (rows * blocks == 0) return {};
  if (out_bytes > rows * blocks) std::memset(out, 0, static_cast<std::size_t>(out_bytes));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      out[scale_offset(to, blocks, r, b)] = in[scale_offset(from, blocks, r, b)];
    }
  }
  return {};
}

}  // namespace mpfa
