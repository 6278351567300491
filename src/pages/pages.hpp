// What the files of this folder share.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "mpfa/layout.hpp"
#include "mpfa/pages.hpp"

namespace mpfa::pages {

template <class... Args>
[[nodiscard]] Status invalid(fmt::format_string<Args...> text, Args&&... args) {
  return {StatusCode::invalid_argument, fmt::format(text, std::forward<Args>(args)...)};
}

template <class... Args>
[[nodiscard]] Status out_of_range(fmt::format_string<Args...> text, Args&&... args) {
  return {StatusCode::out_of_range, fmt::format(text, std::forward<Args>(args)...)};
}

/// The ggml block that holds the codes and scales of `f`, if there is one.
[[nodiscard]] std::optional<GgmlType> ggml_type(const BlockFormat& f);

/// True when some row of `a` and some row of `b` may have a byte in common.
[[nodiscard]] bool share_bytes(const Pages& a, const Pages& b);
/// True when some row of codes and some row of scales may.
[[nodiscard]] bool scales_in_codes(const Pages& p);

/// 16-bit pages as convert_pages of `format` leaves them, or why it cannot. Reads neither pages nor global.
[[nodiscard]] Result<MutablePages> converted_pages(const MutablePages& pages, const BlockFormat& format,
                                                   const float* global);

/// Of pages whose scales are a part of their own.
[[nodiscard]] constexpr ScaleLayout scale_layout(PagesLayout layout) {
  return layout == PagesLayout::page_swizzle4 ? ScaleLayout::page_swizzle4
         : layout == PagesLayout::tile_128x4  ? ScaleLayout::tile_128x4
                                              : ScaleLayout::linear;
}

}  // namespace mpfa::pages
