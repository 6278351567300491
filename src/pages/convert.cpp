// 16-bit pages become packed ones in the memory they are in.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "pages/pages.hpp"

namespace mpfa {
namespace {

/// Where the parts of a converted page lie.
struct Place {
  PageGeometry geometry;
  std::int64_t scales = 0;  // bytes from the start of the page
};

Status check_source(const MutablePages& p) {
  const PagesKind& k = p.kind;
  const bool wide = k.format.element == Element::bf16 || k.format.element == Element::f16;
  if (!wide || k.layout != PagesLayout::linear) {
    return pages::invalid("convert_pages: the pages are '{}'; bf16 or fp16 in linear layout is needed", pages_tag(k));
  }
  // The stride of an extent of 1 means nothing.
  const std::int64_t row = k.head_dim * 2;
  const auto strides = [&](std::int64_t token, std::int64_t head) {
    return (k.page_size == 1 || p.bytes.data_row_stride == token) &&
           (k.kv_heads == 1 || p.bytes.data_head_stride == head);
  };
  if (strides(k.kv_heads * row, row) || strides(row, k.page_size * row)) return {};
  return pages::invalid(
      "convert_pages: rows of {} bytes at strides {} (head) and {} (token) leave gaps in a page; a page must be "
      "contiguous, [page_size, kv_heads, head_dim] or [kv_heads, page_size, head_dim]",
      row, p.bytes.data_head_stride, p.bytes.data_row_stride);
}

Result<Place> place_of(const PagesKind& k, const BlockFormat& f, const float* global) {
  if (Status s = check_format(f, k.head_dim, k.page_size); !s.ok()) return s;
  if (element_bits(f.element) > 8) {
    return pages::invalid("convert_pages: format {} is not smaller than 16-bit pages; take one of 8 or 4 bits",
                          format_name(f));
  }
  if (f.rule == ScaleRule::fixed && global == nullptr) {
    return pages::invalid("convert_pages: format {} stores no scale; pass global [{}], calibrated by you",
                          format_name(f), k.kv_heads);
  }
  const PageGeometry g = page_geometry(f, k.head_dim, k.page_size);
  const std::int64_t scales = (g.data_bytes() * k.kv_heads + 15) / 16 * 16;
  const std::int64_t needed = scales + g.scale_bytes() * k.kv_heads, given = k.page_size * k.kv_heads * k.head_dim * 2;
  if (needed > given) {
    return pages::invalid(
        "convert_pages: a page of '{}' has {} bytes, format {} takes {}; take a format with fewer scale bytes, or "
        "larger pages",
        pages_tag(k), given, format_name(f), needed);
  }
  return Place{g, scales};
}

Status check_global(const float* global, std::int64_t heads) {
  for (std::int64_t h = 0; global != nullptr && h < heads; ++h) {
    if (std::isfinite(global[h]) && global[h] > 0.0F) continue;
    return pages::invalid("convert_pages: global[{}] is {}; a finite positive scale is needed", h, global[h]);
  }
  return {};
}

Status check_ids(std::span<const std::int32_t> ids, std::int64_t num_pages) {
  std::vector<std::int32_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= num_pages)) {
    return pages::out_of_range("convert_pages: page {} is out of range; page ids are in 0..{}",
                               sorted.front() < 0 ? sorted.front() : sorted.back(), num_pages - 1);
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return {};
  return pages::invalid("convert_pages: page {} is given twice; its codes would be converted again", *twice);
}

}  // namespace

Result<MutablePages> pages::converted_pages(const MutablePages& pages, const BlockFormat& format, const float* global) {
  const PagesKind& k = pages.kind;
  if (Status s = check_source(pages); !s.ok()) return s;
  const Result<Place> placed = place_of(k, format, global);
  if (!placed.ok()) return placed.status();
  const auto& [g, scales] = placed.value();

  MutablePages packed{k, {}, pages.data, nullptr};
  packed.kind.format = format;
  packed.bytes.data = pages.data;
  packed.bytes.data_page_stride = packed.bytes.scale_page_stride = pages.bytes.data_page_stride;
  packed.bytes.data_head_stride = g.data_bytes();
  packed.bytes.data_row_stride = g.data_row_bytes;
  packed.bytes.global = global;
  // A pool without pages need not have the bytes of one.
  if (g.scale_bytes() > 0 && k.num_pages > 0) {
    packed.scales = pages.data + scales;
    packed.bytes.scales = packed.scales;
  }
  packed.bytes.scale_head_stride = g.scale_bytes();
  packed.bytes.scale_row_stride = g.scale_row_bytes;
  return packed;
}

Result<MutablePages> convert_pages(const MutablePages& pages, const BlockFormat& format,
                                   std::span<const std::int32_t> ids, const float* mean, const float* global,
                                   QuantiseCounters* counters) {
  const PagesKind& k = pages.kind;
  Result<MutablePages> converted = pages::converted_pages(pages, format, global);
  if (!converted.ok()) return converted;
  const MutablePages& packed = converted.value();
  if (Status s = check_global(global, k.kv_heads); !s.ok()) return s;
  try {
    if (Status s = check_ids(ids, k.num_pages); !s.ok()) return s;
    if (ids.empty()) return packed;
    const std::int64_t d = k.head_dim;
    std::vector<std::byte> wide(static_cast<std::size_t>(k.page_size * k.kv_heads * d * 2));
    std::vector<float> rows(static_cast<std::size_t>(k.page_size * d));
    for (const std::int32_t id : ids) {
      std::memcpy(wide.data(), pages.page(id, 0).data, wide.size());
      for (std::int64_t h = 0; h < k.kv_heads; ++h) {
        const ConstPageBytes from{wide.data() + h * pages.bytes.data_head_stride, pages.bytes.data_row_stride, nullptr,
                                  0};
        dequantise_tokens(k.format, d, 0, k.page_size, from, 1.0F, rows.data(), d, 1);
        for (std::size_t i = 0; mean != nullptr && i < rows.size(); ++i) {
          rows[i] -= mean[h * d + static_cast<std::int64_t>(i) % d];
        }
        quantise_tokens(format, d, 0, k.page_size, rows.data(), d, packed.bytes.global_scale(h), packed.page(id, h),
                        counters);
      }
    }
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::out_of_memory, "convert_pages: the copy of one page does not fit in memory"};
  }
  return packed;
}

}  // namespace mpfa
