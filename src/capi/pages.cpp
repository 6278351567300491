// Descriptions of the caller's pages behind the C ABI.
#include "capi/pages.hpp"

#include <algorithm>
#include <limits>
#include <span>

namespace mpfa::capi {

namespace {

template <class Byte>
BasicPagePart<Byte> data_of(const mpfa_pages& p) {
  return {static_cast<Byte*>(p.data),
          bytes_of(p.data_bytes),
          p.data_offset,
          {p.data_page_stride, p.data_head_stride, p.data_row_stride}};
}
template <class Byte>
BasicPagePart<Byte> scales_of(const mpfa_pages& p) {
  return {static_cast<Byte*>(p.scales),
          bytes_of(p.scales_bytes),
          p.scale_offset,
          {p.scale_page_stride, p.scale_head_stride, p.scale_row_stride}};
}

}  // namespace

Result<PagesKind> to_kind(const char* call, const char* name, const mpfa_pages* p) {
  if (Status s = check_struct(call, name, p); !s.ok()) return s;
  if (Status s = not_null(call, "pages->format", p->format); !s.ok()) return s;
  const auto format = parse_format(p->format);
  if (!format.ok()) return format.status();
  const auto layout = parse_pages_layout(p->layout == nullptr ? "linear" : p->layout);
  if (!layout.ok()) return layout.status();
  return PagesKind{format.value(), layout.value(), p->num_pages, p->page_size, p->kv_heads, p->head_dim};
}

void set_converted(const mpfa_pages& pages, const char* format, const float* global, const MutablePages& made,
                   mpfa_pages& converted) {
  const OperandPages& o = made.bytes;
  converted = pages;
  converted.format = format;
  converted.global = global;
  const auto part = [&](int64_t offset, const PageStrides& strides) {
    return MutablePagePart{static_cast<std::byte*>(pages.data), bytes_of(pages.data_bytes), offset, strides};
  };
  set_data(converted, part(pages.data_offset, {o.data_page_stride, o.data_head_stride, o.data_row_stride}));
  if (o.scales == nullptr) return;
  set_scales(converted, part(pages.data_offset + (o.scales - o.data),
                             {o.scale_page_stride, o.scale_head_stride, o.scale_row_stride}));
}

std::int64_t bytes_of(std::size_t n) {
  return static_cast<std::int64_t>(std::min<std::size_t>(n, std::numeric_limits<std::int64_t>::max()));
}

Result<Pages> to_pages(const char* call, const char* name, const mpfa_pages* p) {
  const auto kind = to_kind(call, name, p);
  if (!kind.ok()) return kind.status();
  return make_pages(kind.value(), data_of<const std::byte>(*p), scales_of<const std::byte>(*p), p->global);
}
Result<MutablePages> to_mutable(const char* call, const char* name, const mpfa_pages* p) {
  const auto kind = to_kind(call, name, p);
  if (!kind.ok()) return kind.status();
  return make_pages(kind.value(), data_of<std::byte>(*p), scales_of<std::byte>(*p), p->global);
}

void set_data(mpfa_pages& p, const MutablePagePart& part) {
  p.data = part.data;
  p.data_bytes = static_cast<std::size_t>(part.bytes);
  p.data_offset = part.offset;
  p.data_page_stride = part.strides.page;
  p.data_head_stride = part.strides.head;
  p.data_row_stride = part.strides.row;
}
void set_scales(mpfa_pages& p, const MutablePagePart& part) {
  p.scales = part.data;
  p.scales_bytes = static_cast<std::size_t>(part.bytes);
  p.scale_offset = part.offset;
  p.scale_page_stride = part.strides.page;
  p.scale_head_stride = part.strides.head;
  p.scale_row_stride = part.strides.row;
}

void add_counters(const QuantiseCounters& met, mpfa_counters* counters) {
  if (counters == nullptr) return;
  counters->nonfinite_blocks += met.nonfinite_blocks;
  counters->saturated_elements += met.saturated_elements;
  counters->flushed_blocks += met.flushed_blocks;
}

}  // namespace mpfa::capi

using mpfa::MutablePagePart;
using mpfa::PagesKind;
using mpfa::Result;
using mpfa::Status;
using mpfa::capi::guarded;
using mpfa::capi::invalid;
using mpfa::capi::not_null;
using mpfa::capi::set_data;
using mpfa::capi::set_scales;
using mpfa::capi::to_kind;
using mpfa::capi::to_pages;

namespace {

/// A part without padding, of the pointer that is there.
Result<MutablePagePart> dense_part(const PagesKind& kind, mpfa::PageOrder order, int64_t rows, int64_t row_bytes,
                                   void* data) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows * row_bytes, kind.kv_heads * kind.num_pages, &bytes)) {
    return invalid(fmt::format("mpfa_pages_dense: {} pages of {} rows of {} bytes for {} heads pass 64 bits",
                               kind.num_pages, rows, row_bytes, kind.kv_heads));
  }
  return MutablePagePart{static_cast<std::byte*>(data), bytes, 0,
                         mpfa::dense_strides(order, rows, kind.kv_heads, row_bytes)};
}

Result<mpfa::PageOrder> to_order(const char* call, const char* order) {
  if (Status s = not_null(call, "order", order); !s.ok()) return s;
  return mpfa::parse_page_order(order);
}

}  // namespace

extern "C" {

void mpfa_pages_init(mpfa_pages* pages, size_t struct_size) {
  mpfa::capi::init_struct(pages, struct_size, mpfa_pages{});
}

mpfa_status mpfa_pages_dense(mpfa_pages* pages, const char* order, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto kind = to_kind("mpfa_pages_dense", "pages", pages);
    if (!kind.ok()) return kind.status();
    const auto parsed = to_order("mpfa_pages_dense", order);
    if (!parsed.ok()) return parsed.status();
    const auto g = mpfa::pages_geometry(kind.value());
    if (!g.ok()) return g.status();
    const auto data =
        dense_part(kind.value(), parsed.value(), g.value().data_rows, g.value().data_row_bytes, pages->data);
    if (!data.ok()) return data.status();
    const auto scales =
        dense_part(kind.value(), parsed.value(), g.value().scale_rows, g.value().scale_row_bytes, pages->scales);
    if (!scales.ok()) return scales.status();
    set_data(*pages, data.value());
    set_scales(*pages, scales.value());
    return {};
  });
}

mpfa_status mpfa_pages_joined(mpfa_pages* k, mpfa_pages* v, const char* order, void* buffer, size_t bytes,
                              int64_t page_stride, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_pages_joined";
    const auto k_kind = to_kind(kCall, "k", k), v_kind = to_kind(kCall, "v", v);
    if (!k_kind.ok()) return k_kind.status();
    if (!v_kind.ok()) return v_kind.status();
    const auto parsed = to_order(kCall, order);
    if (!parsed.ok()) return parsed.status();
    MPFA_RETURN_IF_ERROR(not_null(kCall, "buffer", buffer));
    const auto parts = mpfa::joined_parts(k_kind.value(), v_kind.value(), parsed.value(),
                                          std::span(static_cast<std::byte*>(buffer), bytes), page_stride);
    if (!parts.ok()) return parts.status();
    set_data(*k, parts.value().k_data);
    set_scales(*k, parts.value().k_scales);
    set_data(*v, parts.value().v_data);
    set_scales(*v, parts.value().v_scales);
    return {};
  });
}

mpfa_status mpfa_pages_operand(const mpfa_pages* pages, mpfa_operand_pages* operand, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_pages_operand", "operand", operand));
    const auto made = to_pages("mpfa_pages_operand", "pages", pages);
    if (!made.ok()) return made.status();
    if (made.value().kind.layout != mpfa::PagesLayout::linear) {
      return invalid(
          fmt::format("mpfa_pages_operand: the pages are '{}'; only linear pages are read in place: "
                      "mpfa_pages_copy to linear ones",
                      mpfa::pages_tag(made.value().kind)));
    }
    *operand = mpfa::capi::from_pages(made.value().bytes);
    return {};
  });
}

mpfa_status mpfa_pages_tag(const mpfa_pages* pages, char* tag, size_t tag_bytes, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto kind = to_kind("mpfa_pages_tag", "pages", pages);
    if (!kind.ok()) return kind.status();
    MPFA_RETURN_IF_ERROR(not_null("mpfa_pages_tag", "tag", tag));
    if (tag_bytes == 0) return {};
    const std::size_t n = mpfa::pages_tag(kind.value()).copy(tag, tag_bytes - 1);
    tag[n] = '\0';
    return {};
  });
}

mpfa_status mpfa_pages_check_tag(const mpfa_pages* pages, const char* tag, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto kind = to_kind("mpfa_pages_check_tag", "pages", pages);
    if (!kind.ok()) return kind.status();
    MPFA_RETURN_IF_ERROR(not_null("mpfa_pages_check_tag", "tag", tag));
    return mpfa::check_pages_tag(kind.value(), tag);
  });
}

}  // extern "C"
