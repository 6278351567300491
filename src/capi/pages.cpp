// Pages of the caller behind the C ABI.
#include "mpfa/pages.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "capi/handles.hpp"

using mpfa::MutablePagePart;
using mpfa::PagePart;
using mpfa::PagesKind;
using mpfa::Result;
using mpfa::Status;
using mpfa::capi::check_list;
using mpfa::capi::check_struct;
using mpfa::capi::guarded;
using mpfa::capi::invalid;
using mpfa::capi::not_null;

namespace {

Result<PagesKind> to_kind(const char* call, const char* name, const mpfa_pages* p) {
  if (Status s = check_struct(call, name, p); !s.ok()) return s;
  if (Status s = not_null(call, "pages->format", p->format); !s.ok()) return s;
  const auto format = mpfa::parse_format(p->format);
  if (!format.ok()) return format.status();
  const auto layout = mpfa::parse_pages_layout(p->layout == nullptr ? "linear" : p->layout);
  if (!layout.ok()) return layout.status();
  return PagesKind{format.value(), layout.value(), p->num_pages, p->page_size, p->kv_heads, p->head_dim};
}

int64_t bytes_of(size_t n) {
  return static_cast<int64_t>(std::min<size_t>(n, std::numeric_limits<int64_t>::max()));
}

template <class Byte>
mpfa::BasicPagePart<Byte> data_of(const mpfa_pages& p) {
  return {static_cast<Byte*>(p.data),
          bytes_of(p.data_bytes),
          p.data_offset,
          {p.data_page_stride, p.data_head_stride, p.data_row_stride}};
}
template <class Byte>
mpfa::BasicPagePart<Byte> scales_of(const mpfa_pages& p) {
  return {static_cast<Byte*>(p.scales),
          bytes_of(p.scales_bytes),
          p.scale_offset,
          {p.scale_page_stride, p.scale_head_stride, p.scale_row_stride}};
}

Result<mpfa::Pages> to_pages(const char* call, const char* name, const mpfa_pages* p) {
  const auto kind = to_kind(call, name, p);
  if (!kind.ok()) return kind.status();
  return mpfa::make_pages(kind.value(), data_of<const std::byte>(*p), scales_of<const std::byte>(*p), p->global);
}
Result<mpfa::MutablePages> to_mutable(const char* call, const char* name, const mpfa_pages* p) {
  const auto kind = to_kind(call, name, p);
  if (!kind.ok()) return kind.status();
  return mpfa::make_pages(kind.value(), data_of<std::byte>(*p), scales_of<std::byte>(*p), p->global);
}

void set_data(mpfa_pages& p, const MutablePagePart& part) {
  p.data = part.data;
  p.data_bytes = static_cast<size_t>(part.bytes);
  p.data_offset = part.offset;
  p.data_page_stride = part.strides.page;
  p.data_head_stride = part.strides.head;
  p.data_row_stride = part.strides.row;
}
void set_scales(mpfa_pages& p, const MutablePagePart& part) {
  p.scales = part.data;
  p.scales_bytes = static_cast<size_t>(part.bytes);
  p.scale_offset = part.offset;
  p.scale_page_stride = part.strides.page;
  p.scale_head_stride = part.strides.head;
  p.scale_row_stride = part.strides.row;
}

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

void add_counters(const mpfa::QuantiseCounters& met, mpfa_counters* counters) {
  if (counters == nullptr) return;
  counters->nonfinite_blocks += met.nonfinite_blocks;
  counters->saturated_elements += met.saturated_elements;
  counters->flushed_blocks += met.flushed_blocks;
}

template <class Slot>
Status write(const mpfa::CacheConfig& config, const mpfa::MutablePages& kp, const mpfa::MutablePages& vp,
             const mpfa::TensorView& k, const mpfa::TensorView& v, const void* slots, int64_t count,
             mpfa_counters* counters) {
  mpfa::QuantiseCounters met;
  MPFA_RETURN_IF_ERROR(mpfa::quantise_to_pages(
      config, kp, vp, k, v, std::span(static_cast<const Slot*>(slots), static_cast<size_t>(count)), &met));
  add_counters(met, counters);
  return {};
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

mpfa_status mpfa_pages_copy(const mpfa_pages* from, const mpfa_pages* to, const int32_t* from_ids,
                            const int32_t* to_ids, int64_t count, int64_t tokens, mpfa_error* error) {
  static_assert(MPFA_ALL_TOKENS == mpfa::all_slots);
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_pages_copy";
    const auto source = to_pages(kCall, "from", from);
    if (!source.ok()) return source.status();
    const auto target = to_mutable(kCall, "to", to);
    if (!target.ok()) return target.status();
    MPFA_RETURN_IF_ERROR(check_list(kCall, "from_ids", from_ids, count));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "to_ids", to_ids, count));
    return mpfa::copy_pages(source.value(), target.value(), std::span(from_ids, static_cast<size_t>(count)),
                            std::span(to_ids, static_cast<size_t>(count)), tokens);
  });
}

mpfa_status mpfa_pages_convert(const mpfa_pages* pages, const char* format, const int32_t* ids, int64_t count,
                               const float* mean, const float* global, mpfa_pages* converted, mpfa_counters* counters,
                               mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_pages_convert";
    const auto source = to_mutable(kCall, "pages", pages);
    if (!source.ok()) return source.status();
    MPFA_RETURN_IF_ERROR(not_null(kCall, "format", format));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "converted", converted));
    if (converted == pages) return invalid(fmt::format("{}: converted is pages; pass a struct of its own", kCall));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "ids", ids, count));
    const auto parsed = mpfa::parse_format(format);
    if (!parsed.ok()) return parsed.status();
    mpfa::QuantiseCounters met;
    const auto made = mpfa::convert_pages(source.value(), parsed.value(), std::span(ids, static_cast<size_t>(count)),
                                          mean, global, &met);
    if (!made.ok()) return made.status();
    const mpfa::OperandPages& o = made.value().bytes;
    *converted = *pages;
    converted->format = format;
    converted->global = global;
    const auto part = [&](int64_t offset, const mpfa::PageStrides& strides) {
      return MutablePagePart{static_cast<std::byte*>(pages->data), bytes_of(pages->data_bytes), offset, strides};
    };
    set_data(*converted, part(pages->data_offset, {o.data_page_stride, o.data_head_stride, o.data_row_stride}));
    if (o.scales != nullptr) {
      set_scales(*converted, part(pages->data_offset + (o.scales - o.data),
                                  {o.scale_page_stride, o.scale_head_stride, o.scale_row_stride}));
    }
    add_counters(met, counters);
    return {};
  });
}

mpfa_status mpfa_pages_write(const mpfa_cache_config* config, const mpfa_pages* k_pages, const mpfa_pages* v_pages,
                             const mpfa_tensor* k, const mpfa_tensor* v, const void* slot_mapping,
                             mpfa_dtype slot_dtype, int64_t count, mpfa_counters* counters, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_pages_write";
    const auto made = mpfa::capi::to_config(kCall, config);
    if (!made.ok()) return made.status();
    const auto kp = to_mutable(kCall, "k_pages", k_pages), vp = to_mutable(kCall, "v_pages", v_pages);
    if (!kp.ok()) return kp.status();
    if (!vp.ok()) return vp.status();
    MPFA_RETURN_IF_ERROR(not_null(kCall, "k", k));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "v", v));
    const auto kt = mpfa::capi::to_view(kCall, "k", *k), vt = mpfa::capi::to_view(kCall, "v", *v);
    if (!kt.ok()) return kt.status();
    if (!vt.ok()) return vt.status();
    MPFA_RETURN_IF_ERROR(check_list(kCall, "slot_mapping", slot_mapping, count));
    if (slot_dtype != MPFA_I32 && slot_dtype != MPFA_I64) {
      return invalid(fmt::format("{}: slot_dtype is {}; use MPFA_I32 or MPFA_I64", kCall, slot_dtype));
    }
    const auto run = slot_dtype == MPFA_I32 ? write<int32_t> : write<int64_t>;
    return run(made.value(), kp.value(), vp.value(), kt.value(), vt.value(), slot_mapping, count, counters);
  });
}

mpfa_status mpfa_page_table_from_csr(const int32_t* indptr, int64_t batch, const int32_t* indices,
                                     int64_t indices_count, const int32_t* last_page_len, int64_t num_pages,
                                     int64_t page_size, int32_t* page_table, int64_t columns, int64_t* lengths,
                                     mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_page_table_from_csr";
    MPFA_RETURN_IF_ERROR(not_null(kCall, "indptr", indptr));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "last_page_len", last_page_len, batch));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "indices", indices, indices_count));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "lengths", lengths, batch));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "page_table", page_table, columns < 0 ? columns : batch * (columns > 0)));
    const auto n = static_cast<size_t>(batch);
    const auto dense = mpfa::dense_page_table(
        {std::span(indptr, n + 1), std::span(indices, static_cast<size_t>(indices_count)), std::span(last_page_len, n)},
        num_pages, page_size);
    if (!dense.ok()) return dense.status();
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t used = indptr[b + 1] - indptr[b];
      if (used <= columns) continue;
      return {
          mpfa::StatusCode::out_of_range,
          fmt::format("{}: sequence {} has {} pages, page_table has {} columns; give more", kCall, b, used, columns)};
    }
    for (int64_t b = 0; b < batch; ++b) {
      const int32_t* row = dense.value().page_table.data() + b * dense.value().stride;
      const int64_t used = indptr[b + 1] - indptr[b];
      std::copy_n(row, used, page_table + b * columns);
      std::fill_n(page_table + b * columns + used, columns - used, -1);
      lengths[b] = dense.value().lengths[static_cast<size_t>(b)];
    }
    return {};
  });
}

mpfa_status mpfa_cache_import_pages(mpfa_cache* cache, int64_t sequence, const mpfa_pages* k, const mpfa_pages* v,
                                    const int32_t* ids, int64_t count, int64_t tokens, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_cache_import_pages";
    MPFA_RETURN_IF_ERROR(not_null(kCall, "cache", cache));
    const auto kp = to_pages(kCall, "k", k), vp = to_pages(kCall, "v", v);
    if (!kp.ok()) return kp.status();
    if (!vp.ok()) return vp.status();
    MPFA_RETURN_IF_ERROR(check_list(kCall, "ids", ids, count));
    return cache->cache.import_pages(sequence, kp.value(), vp.value(), std::span(ids, static_cast<size_t>(count)),
                                     tokens);
  });
}

}  // extern "C"
