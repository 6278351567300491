// What a set of pages is: names, geometry in every layout, tags.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "pages/pages.hpp"

namespace mpfa {
namespace {

constexpr std::array<std::string_view, 2> kOrders{"nhd", "hnd"};
constexpr std::array<std::string_view, 4> kLayouts{"linear", "page_swizzle4", "tile_128x4", "ggml"};

template <std::size_t kCount>
std::string_view name_of(const std::array<std::string_view, kCount>& names, std::size_t i) {
  return i < kCount ? names[i] : "unknown";
}

Status check_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return pages::invalid("pages: {} is {}; it must be in {}..{}", name, value, low, high);
}

bool one_byte_scales(const BlockFormat& f) {
  return f.scale == ScaleType::e4m3 || f.scale == ScaleType::e8m0;
}

}  // namespace

std::string_view page_order_name(PageOrder order) {
  return name_of(kOrders, static_cast<std::size_t>(order));
}

std::string_view pages_layout_name(PagesLayout layout) {
  return name_of(kLayouts, static_cast<std::size_t>(layout));
}

Result<PageOrder> parse_page_order(std::string_view name) {
  if (name == "nhd" || name == "NHD") return PageOrder::nhd;
  if (name == "hnd" || name == "HND") return PageOrder::hnd;
  return pages::invalid("page order '{}' is not known; use one of: {}", name, fmt::join(kOrders, ", "));
}

Result<PagesLayout> parse_pages_layout(std::string_view name) {
  for (std::size_t i = 0; i < kLayouts.size(); ++i) {
    if (kLayouts[i] == name) return static_cast<PagesLayout>(i);
  }
  return pages::invalid("pages layout '{}' is not known; use one of: {}", name, fmt::join(kLayouts, ", "));
}

bool same_bytes(const BlockFormat& a, const BlockFormat& b) {
  BlockFormat with_rule = b;
  with_rule.rule = a.rule;
  return a == with_rule;
}

namespace pages {

std::optional<GgmlType> ggml_type(const BlockFormat& f) {
  constexpr std::array<std::pair<const char*, GgmlType>, 4> kTypes{{{"mxfp4", GgmlType::mxfp4},
                                                                    {"nvfp4", GgmlType::nvfp4},
                                                                    {"int8_g32", GgmlType::q8_0},
                                                                    {"int4_g32", GgmlType::q4_0}}};
  for (const auto& [name, type] : kTypes) {
    if (same_bytes(f, parse_format(name).value())) return type;
  }
  return std::nullopt;
}

}  // namespace pages

Result<PageGeometry> pages_geometry(const PagesKind& kind) {
  constexpr std::int64_t kLargest = (std::int64_t{1} << 31) - 1;
  MPFA_RETURN_IF_ERROR(check_range("num_pages", kind.num_pages, 0, kLargest));
  MPFA_RETURN_IF_ERROR(check_range("page_size", kind.page_size, 1, kLargest));
  MPFA_RETURN_IF_ERROR(check_range("kv_heads", kind.kv_heads, 1, 65536));
  MPFA_RETURN_IF_ERROR(check_format(kind.format, kind.head_dim, kind.page_size));
  PageGeometry g = page_geometry(kind.format, kind.head_dim, kind.page_size);
  if (kind.layout == PagesLayout::linear) return g;
  if (kind.layout == PagesLayout::ggml) {
    const std::optional<GgmlType> type = pages::ggml_type(kind.format);
    if (!type) {
      return pages::invalid("pages: format {} has no ggml block; use mxfp4, nvfp4, int8_g32 (q8_0) or int4_g32 (q4_0)",
                            format_name(kind.format));
    }
    const Result<std::int64_t> row = ggml_row_bytes(*type, kind.head_dim);
    if (!row.ok()) return row.status();
    return PageGeometry{kind.page_size, row.value(), 0, 0};
  }
  if (kind.format.axis != PackAxis::head_dim || kind.format.block_keys != 1 || !one_byte_scales(kind.format)) {
    return pages::invalid(
        "pages: layout {} is for one-byte scales along the head dim (nvfp4, mxfp4, mxfp8), not for {}; "
        "use linear",
        pages_layout_name(kind.layout), format_name(kind.format));
  }
  const Result<std::int64_t> bytes =
      scale_layout_bytes(pages::scale_layout(kind.layout), g.scale_rows, g.scale_row_bytes);
  if (!bytes.ok()) return bytes.status();
  if (kind.layout == PagesLayout::tile_128x4) g.scale_rows = 1, g.scale_row_bytes = bytes.value();
  return g;
}

std::string pages_tag(const PagesKind& kind) {
  return fmt::format("{} {} page_size={} kv_heads={} head_dim={}", format_name(kind.format),
                     pages_layout_name(kind.layout), kind.page_size, kind.kv_heads, kind.head_dim);
}

Status check_pages_tag(const PagesKind& kind, std::string_view tag) {
  const std::string own = pages_tag(kind);
  if (own == tag) return {};
  return pages::invalid("pages: the tag is '{}', the pages were described as '{}'; read them as their writer says", tag,
                        own);
}

}  // namespace mpfa
