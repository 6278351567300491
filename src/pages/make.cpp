// Descriptions of the caller's memory, checked so that no page id of the pool can leave it.
#include <algorithm>
#include <array>

#include "pages/pages.hpp"

namespace mpfa {
namespace {

__extension__ typedef __int128 Wide;  // sums of strides times extents

struct Dim {
  Wide stride, extent;
};

/// Rows of one part, and the bytes from the start of the buffer that they cover.
struct Extent {
  std::int64_t rows, row_bytes;
  PageStrides strides;
  Wide low, high;
};

std::array<Dim, 3> dims(const PagesKind& kind, const PageStrides& s, std::int64_t rows) {
  return {Dim{s.page, kind.num_pages}, Dim{s.head, kind.kv_heads}, Dim{s.row, rows}};
}

Result<Extent> check_part(const char* name, const PagesKind& kind, const PagePart& part, std::int64_t rows,
                          std::int64_t row_bytes) {
  const PageStrides& s = part.strides;
  Extent e{rows, row_bytes, s, part.offset, Wide{part.offset} + row_bytes};
  if (rows == 0 || row_bytes == 0 || kind.num_pages == 0) {
    e.high = e.low;
    if (part.data == nullptr || (part.offset >= 0 && part.offset <= part.bytes)) return e;
    return pages::out_of_range("pages: {} begins at byte {} of a buffer of {}; pass the whole buffer", name,
                               part.offset, part.bytes);
  }
  if (part.data == nullptr) {
    return pages::invalid("pages: {} is null; {} pages of format {} need {} rows of {} bytes per head", name,
                          kind.num_pages, format_name(kind.format), rows, row_bytes);
  }
  if (rows > 1 && s.row < row_bytes) {
    return pages::invalid("pages: {} has a row stride of {} bytes; rows of format {} with head_dim {} have {}", name,
                          s.row, format_name(kind.format), kind.head_dim, row_bytes);
  }
  for (const Dim& d : dims(kind, s, rows)) {
    (d.stride < 0 ? e.low : e.high) += d.stride * (d.extent - 1);
  }
  if (e.low < 0 || e.high > part.bytes) {
    constexpr auto shown = [](Wide x) {  // as far as 64 bits go
      return static_cast<std::int64_t>(std::clamp<Wide>(x, -(Wide{1} << 62), Wide{1} << 62));
    };
    return pages::out_of_range(
        "pages: {} rows reach from byte {} to {} of a buffer of {} ({} pages, {} heads, {} rows of {} bytes at strides "
        "{}, {}, {} from {}); pass the whole buffer, or smaller strides or counts",
        name, shown(e.low), shown(e.high), part.bytes, kind.num_pages, kind.kv_heads, rows, row_bytes, s.page, s.head,
        s.row, part.offset);
  }
  return e;
}

/// Two rows of a part at one address would be written twice.
Status check_distinct(const char* name, const PagesKind& kind, const Extent& e) {
  std::array<Dim, 3> sorted = dims(kind, e.strides, e.rows);
  for (Dim& d : sorted) d.stride = d.stride < 0 ? -d.stride : d.stride;
  std::sort(sorted.begin(), sorted.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  Wide span = e.row_bytes;
  for (const Dim& d : sorted) {
    if (d.extent <= 1) continue;
    if (d.stride < span) {
      return pages::invalid(
          "pages: rows of {} overlap at strides {}, {}, {} (page, head, row); pages that are written "
          "need bytes of their own",
          name, e.strides.page, e.strides.head, e.strides.row);
    }
    span += d.stride * (d.extent - 1);
  }
  return {};
}

struct Checked {
  PageGeometry geometry;
  Extent data, scales;
};

Result<Checked> check_parts(const PagesKind& kind, const PagePart& data, const PagePart& scales, const float* global) {
  const Result<PageGeometry> g = pages_geometry(kind);
  if (!g.ok()) return g.status();
  const PageGeometry& geometry = g.value();
  const auto d = check_part("data", kind, data, geometry.data_rows, geometry.data_row_bytes);
  if (!d.ok()) return d.status();
  const auto s = check_part("scales", kind, scales, geometry.scale_rows, geometry.scale_row_bytes);
  if (!s.ok()) return s.status();
  if (kind.format.rule == ScaleRule::fixed && global == nullptr) {
    return pages::invalid("pages: format {} stores no scale; pass global [{}], calibrated by you",
                          format_name(kind.format), kind.kv_heads);
  }
  return Checked{geometry, d.value(), s.value()};
}

OperandPages operand_of(const PagePart& data, const PagePart& scales, bool has_scales, const float* global) {
  OperandPages o;
  o.data = data.data == nullptr ? nullptr : data.data + data.offset;
  o.data_page_stride = data.strides.page;
  o.data_head_stride = data.strides.head;
  o.data_row_stride = data.strides.row;
  // A buffer without scales, as of joined 16-bit pages, is no scale buffer.
  o.scales = scales.data == nullptr || !has_scales ? nullptr : scales.data + scales.offset;
  o.scale_page_stride = scales.strides.page;
  o.scale_head_stride = scales.strides.head;
  o.scale_row_stride = scales.strides.row;
  o.global = global;
  return o;
}

PagePart read_only(const MutablePagePart& p) {
  return {p.data, p.bytes, p.offset, p.strides};
}

}  // namespace

PageStrides dense_strides(PageOrder order, std::int64_t rows, std::int64_t kv_heads, std::int64_t row_bytes) {
  const std::int64_t page = rows * kv_heads * row_bytes;
  if (order == PageOrder::nhd) return {page, row_bytes, kv_heads * row_bytes};
  return {page, rows * row_bytes, row_bytes};
}

PageBytes MutablePages::page(std::int64_t page, std::int64_t head) const {
  return {data + bytes.data_offset(page, head), bytes.data_row_stride,
          scales == nullptr ? nullptr : scales + bytes.scale_offset(page, head), bytes.scale_row_stride};
}

Result<Pages> make_pages(const PagesKind& kind, const PagePart& data, const PagePart& scales, const float* global) {
  const Result<Checked> checked = check_parts(kind, data, scales, global);
  if (!checked.ok()) return checked.status();
  return Pages{kind, operand_of(data, scales, checked.value().geometry.scale_bytes() > 0, global)};
}

Result<MutablePages> make_pages(const PagesKind& kind, const MutablePagePart& data, const MutablePagePart& scales,
                                const float* global) {
  const Result<Checked> checked = check_parts(kind, read_only(data), read_only(scales), global);
  if (!checked.ok()) return checked.status();
  const Checked& c = checked.value();
  MPFA_RETURN_IF_ERROR(check_distinct("data", kind, c.data));
  const bool has_scales = c.geometry.scale_bytes() > 0;
  if (c.scales.high > c.scales.low) MPFA_RETURN_IF_ERROR(check_distinct("scales", kind, c.scales));
  MutablePages made{kind, operand_of(read_only(data), read_only(scales), has_scales, global)};
  if (pages::scales_in_codes(made.view())) {
    return pages::invalid(
        "pages: rows of codes and rows of scales overlap; pages that are written need bytes of their own");
  }
  made.data = data.data == nullptr ? nullptr : data.data + data.offset;
  made.scales = made.bytes.scales == nullptr ? nullptr : scales.data + scales.offset;
  return made;
}

Pages k_pages(const CacheView& v) {
  return {{v.k_format, PagesLayout::linear, v.num_pages, v.page_size, v.kv_heads, v.head_dim}, v.k};
}

Pages v_pages(const CacheView& v) {
  return {{v.v_format, PagesLayout::linear, v.num_pages, v.page_size, v.kv_heads, v.head_dim_v}, v.v};
}

namespace {

template <class Parts, class Part, class Byte>
Result<Parts> join(const PagesKind& k, const PagesKind& v, PageOrder order, std::span<Byte> buffer,
                   std::int64_t page_stride) {
  const Result<PageGeometry> kg = pages_geometry(k), vg = pages_geometry(v);
  if (!kg.ok()) return kg.status();
  if (!vg.ok()) return vg.status();
  if (k.num_pages != v.num_pages || k.page_size != v.page_size || k.kv_heads != v.kv_heads) {
    return pages::invalid(
        "pages: K is {} pages of {}, V {} pages of {}; pages of one buffer hold the same tokens and heads", k.num_pages,
        pages_tag(k), v.num_pages, pages_tag(v));
  }
  std::int64_t at = 0;
  const auto part = [&](std::int64_t rows, std::int64_t row_bytes) {
    const PageStrides strides = dense_strides(order, rows, k.kv_heads, row_bytes);
    const Part p{buffer.data(), static_cast<std::int64_t>(buffer.size()), at, strides};
    at += strides.page;
    return p;
  };
  const PageGeometry &a = kg.value(), &b = vg.value();
  Parts parts{part(a.data_rows, a.data_row_bytes), part(a.scale_rows, a.scale_row_bytes),
              part(b.data_rows, b.data_row_bytes), part(b.scale_rows, b.scale_row_bytes)};
  const std::int64_t stride = page_stride == 0 ? at : page_stride;
  if (stride < at) {
    return pages::invalid("pages: page_stride is {} bytes, a page of K {} and V {} has {}; pass at least that",
                          page_stride, pages_tag(k), pages_tag(v), at);
  }
  for (Part* p : {&parts.k_data, &parts.k_scales, &parts.v_data, &parts.v_scales}) p->strides.page = stride;
  return parts;
}

}  // namespace

Result<JoinedParts> joined_parts(const PagesKind& k, const PagesKind& v, PageOrder order,
                                 std::span<const std::byte> buffer, std::int64_t page_stride) {
  return join<JoinedParts, PagePart>(k, v, order, buffer, page_stride);
}

Result<MutableJoinedParts> joined_parts(const PagesKind& k, const PagesKind& v, PageOrder order,
                                        std::span<std::byte> buffer, std::int64_t page_stride) {
  return join<MutableJoinedParts, MutablePagePart>(k, v, order, buffer, page_stride);
}

}  // namespace mpfa
