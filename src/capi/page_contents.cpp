// Copies, conversions and writes of the caller's pages behind the C ABI.
#include <algorithm>
#include <span>

#include "capi/pages.hpp"

using mpfa::Status;
using mpfa::capi::add_counters;
using mpfa::capi::check_list;
using mpfa::capi::guarded;
using mpfa::capi::invalid;
using mpfa::capi::not_null;
using mpfa::capi::set_converted;
using mpfa::capi::to_mutable;
using mpfa::capi::to_pages;

namespace {

template <class Slot>
Status write(const mpfa::CacheConfig& config, const mpfa::MutablePages& kp, const mpfa::MutablePages& vp,
             const mpfa::TensorView& k, const mpfa::TensorView& v, const void* slots, int64_t count,
             const mpfa::Rope* rope, mpfa_counters* counters) {
  mpfa::QuantiseCounters met;
  MPFA_RETURN_IF_ERROR(mpfa::quantise_to_pages(
      config, kp, vp, k, v, std::span(static_cast<const Slot*>(slots), static_cast<size_t>(count)), &met, rope));
  add_counters(met, counters);
  return {};
}

}  // namespace

extern "C" {

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
    set_converted(*pages, format, global, made.value(), *converted);
    add_counters(met, counters);
    return {};
  });
}

mpfa_status mpfa_pages_write(const mpfa_cache_config* config, const mpfa_pages* k_pages, const mpfa_pages* v_pages,
                             const mpfa_tensor* k, const mpfa_tensor* v, const void* slot_mapping,
                             mpfa_dtype slot_dtype, int64_t count, const mpfa_rope* rope, mpfa_counters* counters,
                             mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_pages_write";
    const auto made = mpfa::capi::to_config(kCall, config);
    if (!made.ok()) return made.status();
    const auto kp = to_mutable(kCall, "k_pages", k_pages);
    if (!kp.ok()) return kp.status();
    mpfa::MutablePages vp;
    if (v_pages != nullptr || !made.value().shared_kv) {
      const auto given = to_mutable(kCall, "v_pages", v_pages);
      if (!given.ok()) return given.status();
      vp = given.value();
    }
    const auto tokens = mpfa::capi::to_views(kCall, k, v);
    if (!tokens.ok()) return tokens.status();
    const auto& [kt, vt] = tokens.value();
    if (!vt && !made.value().shared_kv) return not_null(kCall, "v", v);
    mpfa::Rope turn;
    if (rope != nullptr) {
      const auto given = mpfa::capi::to_rope(kCall, rope);
      if (!given.ok()) return given.status();
      turn = given.value();
    }
    MPFA_RETURN_IF_ERROR(check_list(kCall, "slot_mapping", slot_mapping, count));
    if (slot_dtype != MPFA_I32 && slot_dtype != MPFA_I64) {
      return invalid(fmt::format("{}: slot_dtype is {}; use MPFA_I32 or MPFA_I64", kCall, slot_dtype));
    }
    const auto run = slot_dtype == MPFA_I32 ? write<int32_t> : write<int64_t>;
    return run(made.value(), kp.value(), vp, kt, vt.value_or(mpfa::TensorView{}), slot_mapping, count,
               rope == nullptr ? nullptr : &turn, counters);
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
