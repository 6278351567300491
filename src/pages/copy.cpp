// Copies of pages between layouts: a page and head at a time, through rows of codes and linear scales.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "pages/pages.hpp"

namespace mpfa {
namespace {

/// The bytes of one (page, head) in the layout `linear`, without padding, and the same in another layout.
struct Staging {
  PageGeometry geometry;
  std::vector<std::byte> codes, scales, other;

  /// Makes slots [used, page_size) zero: nobody wrote them.
  void clear_from(std::int64_t used, std::int64_t block_keys) {
    const std::int64_t groups = (used + block_keys - 1) / block_keys;
    std::fill(codes.begin() + used * geometry.data_row_bytes, codes.end(), std::byte{0});
    std::fill(scales.begin() + groups * geometry.scale_row_bytes, scales.end(), std::byte{0});
  }
};

void copy_rows(std::int64_t rows, std::int64_t row_bytes, const std::byte* from, std::int64_t from_stride,
               std::byte* to, std::int64_t to_stride) {
  if (row_bytes == 0) return;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<std::size_t>(row_bytes));
  }
}

std::int64_t size_of(const std::vector<std::byte>& v) {
  return static_cast<std::int64_t>(v.size());
}

/// Scales of one (page, head) between its rows in memory and linear bytes; `own` is the geometry of the layout.
Status load_scales(const PagesKind& kind, const PageGeometry& own, const ConstPageBytes& page, Staging& s) {
  if (kind.layout == PagesLayout::linear) {
    copy_rows(own.scale_rows, own.scale_row_bytes, page.scales, page.scale_row_stride, s.scales.data(),
              own.scale_row_bytes);
    return {};
  }
  s.other.resize(static_cast<std::size_t>(own.scale_bytes()));
  copy_rows(own.scale_rows, own.scale_row_bytes, page.scales, page.scale_row_stride, s.other.data(),
            own.scale_row_bytes);
  return convert_scales(pages::scale_layout(kind.layout), ScaleLayout::linear, s.geometry.scale_rows,
                        s.geometry.scale_row_bytes, s.other.data(), size_of(s.other), s.scales.data(),
                        size_of(s.scales));
}

Status store_scales(const PagesKind& kind, const PageGeometry& own, Staging& s, const PageBytes& page) {
  if (kind.layout == PagesLayout::linear) {
    copy_rows(own.scale_rows, own.scale_row_bytes, s.scales.data(), own.scale_row_bytes, page.scales,
              page.scale_row_stride);
    return {};
  }
  s.other.resize(static_cast<std::size_t>(own.scale_bytes()));
  MPFA_RETURN_IF_ERROR(convert_scales(ScaleLayout::linear, pages::scale_layout(kind.layout), s.geometry.scale_rows,
                                      s.geometry.scale_row_bytes, s.scales.data(), size_of(s.scales), s.other.data(),
                                      size_of(s.other)));
  copy_rows(own.scale_rows, own.scale_row_bytes, s.other.data(), own.scale_row_bytes, page.scales,
            page.scale_row_stride);
  return {};
}

Status load(const PagesKind& kind, const PageGeometry& own, const ConstPageBytes& page, std::int64_t used, Staging& s) {
  const PageGeometry& g = s.geometry;
  if (kind.layout == PagesLayout::ggml) {
    s.other.resize(static_cast<std::size_t>(used * own.data_row_bytes));
    copy_rows(used, own.data_row_bytes, page.data, page.data_row_stride, s.other.data(), own.data_row_bytes);
    MPFA_RETURN_IF_ERROR(from_ggml_blocks(*pages::ggml_type(kind.format), used, kind.head_dim, s.other.data(),
                                          size_of(s.other), s.codes.data(), g.data_row_bytes, s.scales.data(),
                                          g.scale_row_bytes));
  } else {
    copy_rows(g.data_rows, g.data_row_bytes, page.data, page.data_row_stride, s.codes.data(), g.data_row_bytes);
    MPFA_RETURN_IF_ERROR(load_scales(kind, own, page, s));
  }
  if (used < kind.page_size && kind.format.axis == PackAxis::head_dim) s.clear_from(used, kind.format.block_keys);
  return {};
}

/// Stores what `s` holds; without `page` it only checks that the layout can.
Status store(const PagesKind& kind, const PageGeometry& own, Staging& s, const PageBytes* page) {
  const PageGeometry& g = s.geometry;
  if (kind.layout != PagesLayout::ggml) {
    if (page == nullptr) return {};
    copy_rows(g.data_rows, g.data_row_bytes, s.codes.data(), g.data_row_bytes, page->data, page->data_row_stride);
    return store_scales(kind, own, s, *page);
  }
  s.other.resize(static_cast<std::size_t>(own.data_bytes()));
  MPFA_RETURN_IF_ERROR(to_ggml_blocks(*pages::ggml_type(kind.format), own.data_rows, kind.head_dim, s.codes.data(),
                                      g.data_row_bytes, s.scales.data(), g.scale_row_bytes, s.other.data(),
                                      size_of(s.other)));
  if (page == nullptr) return {};
  copy_rows(own.data_rows, own.data_row_bytes, s.other.data(), own.data_row_bytes, page->data, page->data_row_stride);
  return {};
}

Status check_ids(const char* name, std::span<const std::int32_t> ids, const PagesKind& kind) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < kind.num_pages) continue;
    return pages::out_of_range("copy_pages: {}[{}] is {}; page ids must be in [0, {})", name, i, ids[i],
                               kind.num_pages);
  }
  return {};
}

Status check_copy(const PagesKind& from, const PagesKind& to, std::span<const std::int32_t> from_ids,
                  std::span<const std::int32_t> to_ids, std::int64_t tokens) {
  if (!same_bytes(from.format, to.format) || from.page_size != to.page_size || from.kv_heads != to.kv_heads ||
      from.head_dim != to.head_dim) {
    return pages::invalid(
        "copy_pages: the source is '{}', the target '{}'; format, page_size, kv_heads and head_dim must be "
        "equal (the layout may differ)",
        pages_tag(from), pages_tag(to));
  }
  if (from_ids.size() != to_ids.size()) {
    return pages::invalid("copy_pages: {} source ids and {} target ids; one target for each source is needed",
                          from_ids.size(), to_ids.size());
  }
  const auto count = static_cast<std::int64_t>(from_ids.size());
  if (tokens != all_slots &&
      (tokens > count * from.page_size || tokens <= (count - 1) * from.page_size || tokens < 0)) {
    return pages::out_of_range("copy_pages: {} tokens do not fill {} pages of {}; name just the pages that hold them",
                               tokens, count, from.page_size);
  }
  MPFA_RETURN_IF_ERROR(check_ids("from_ids", from_ids, from));
  MPFA_RETURN_IF_ERROR(check_ids("to_ids", to_ids, to));
  std::vector<std::int32_t> sorted(to_ids.begin(), to_ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return {};
  return pages::invalid("copy_pages: page {} is a target twice; name every target once", *twice);
}

/// Pages of one pool may be copied onto others of it; any other sharing would read what was just written.
Status check_apart(const Pages& from, const Pages& to, std::span<const std::int32_t> from_ids,
                   std::span<const std::int32_t> to_ids) {
  if (!pages::share_bytes(from, to)) return {};
  const bool same_pool = from.kind.layout == to.kind.layout && from.bytes.data == to.bytes.data &&
                         from.bytes.scales == to.bytes.scales &&
                         from.bytes.data_offset(1, 1) == to.bytes.data_offset(1, 1) &&
                         from.bytes.scale_offset(1, 1) == to.bytes.scale_offset(1, 1);
  if (!same_pool) return pages::invalid("copy_pages: source and target share bytes; copy to memory of its own");
  for (const std::int32_t id : to_ids) {
    if (std::find(from_ids.begin(), from_ids.end(), id) == from_ids.end()) continue;
    return pages::invalid("copy_pages: page {} of one pool is a source and a target; copy it elsewhere first", id);
  }
  return {};
}

}  // namespace

Status copy_pages(const Pages& from, const MutablePages& to, std::span<const std::int32_t> from_ids,
                  std::span<const std::int32_t> to_ids, std::int64_t tokens) {
  const Result<PageGeometry> source = pages_geometry(from.kind), target = pages_geometry(to.kind);
  if (!source.ok()) return source.status();
  if (!target.ok()) return target.status();
  try {
    MPFA_RETURN_IF_ERROR(check_copy(from.kind, to.kind, from_ids, to_ids, tokens));
    MPFA_RETURN_IF_ERROR(check_apart(from, to.view(), from_ids, to_ids));
    Staging s;
    s.geometry = page_geometry(from.kind.format, from.kind.head_dim, from.kind.page_size);
    s.codes.resize(static_cast<std::size_t>(s.geometry.data_bytes()));
    s.scales.resize(static_cast<std::size_t>(s.geometry.scale_bytes()));
    s.other.reserve(static_cast<std::size_t>(std::max({source.value().data_bytes(), target.value().data_bytes(),
                                                       source.value().scale_bytes(), target.value().scale_bytes()})));
    // ggml blocks can refuse a scale: a first pass looks, so that a failure leaves no page half copied.
    const bool refusable = from.kind.layout == PagesLayout::ggml || to.kind.layout == PagesLayout::ggml;
    for (int pass = refusable ? 0 : 1; pass < 2; ++pass) {
      for (std::size_t i = 0; i < from_ids.size(); ++i) {
        const std::int64_t left = tokens - static_cast<std::int64_t>(i) * from.kind.page_size;
        const std::int64_t used = tokens == all_slots ? from.kind.page_size : std::min(left, from.kind.page_size);
        for (std::int64_t h = 0; h < from.kind.kv_heads; ++h) {
          MPFA_RETURN_IF_ERROR(load(from.kind, source.value(), from.bytes.page(from_ids[i], h), used, s));
          const PageBytes page = to.page(to_ids[i], h);
          MPFA_RETURN_IF_ERROR(store(to.kind, target.value(), s, pass == 0 ? nullptr : &page));
        }
      }
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "copy_pages: a page does not fit in memory twice; use smaller pages"};
  }
  return {};
}

}  // namespace mpfa
