// Tokens written into pages of the caller, rotated or not, with V or as part of K, and pages taken over into a cache:
// the bytes of write_slots of tokens that plain code rotated. Page tables in compressed rows against the obvious loop.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/capi_tokens.hpp"
#include "tests/fuzz/owned_pages.hpp"

namespace mpfa::fuzz {

/// Token `slot` of `page` in pages of the caller and in those of a cache.
inline void require_same_token(OwnedPages& pages, const mpfa_operand_pages& o, std::int64_t page, std::int64_t slot,
                               std::int64_t other_page, std::int64_t other_slot) {
  const PageGeometry& g = pages.geometry;
  for (std::int64_t h = 0; h < pages.pages.kv_heads; ++h) {
    const auto* data = static_cast<const std::byte*>(o.data) + other_page * o.data_page_stride + h * o.data_head_stride;
    require(std::equal(data + other_slot * o.data_row_stride, data + other_slot * o.data_row_stride + g.data_row_bytes,
                       pages.row(page, h, slot)),
            "codes of a token differ");
    if (g.scale_rows == 0) continue;
    const auto* scales =
        static_cast<const std::byte*>(o.scales) + other_page * o.scale_page_stride + h * o.scale_head_stride;
    require(std::equal(scales + other_slot * o.scale_row_stride,
                       scales + other_slot * o.scale_row_stride + g.scale_row_bytes, pages.scale_row(page, h, slot)),
            "scales of a token differ");
  }
}

inline void write_pages(Input& in) {
  World w;
  if (!w.create(in)) return;
  const mpfa_cache_config& c = w.config;
  mpfa_cache_view view{};
  view.struct_size = sizeof view;
  require(mpfa_cache_get_view(w.plain, &view, nullptr) == MPFA_OK, "a cache has no view");
  OwnedPages k, v;
  if (!k.make(in, view.k_format, nullptr, c.num_pages, c.page_size, c.kv_heads, c.head_dim)) return;
  if (!v.make(in, view.v_format, nullptr, c.num_pages, c.page_size, c.kv_heads, c.head_dim_v)) return;
  if (!in.rarely(8)) k.pages.global = c.k_global, v.pages.global = c.v_global;
  k.mark();
  v.mark();
  const std::int64_t n = in.between(0, 50);
  TokenData data(in, w, 1, n, true);
  std::vector<std::int32_t> slots;
  const std::int64_t first = in.between(0, 100);
  for (std::int64_t i = 0; i < n; ++i) {
    slots.push_back(in.coin() ? static_cast<std::int32_t>(in.size(-1, 300)) : static_cast<std::int32_t>(first + i));
  }
  const std::vector<std::int64_t> wide(slots.begin(), slots.end());
  const mpfa_tensor kt = data.given(c.kv_heads, c.head_dim), vt = data.given(c.kv_heads, c.head_dim_v);
  const bool spoiled = in.rarely(8) && k.spoil(in), narrow = in.coin();
  const void* const list = narrow ? static_cast<const void*>(slots.data()) : wide.data();
  std::optional<RopeInput> rope;
  if (in.coin()) rope.emplace(in, c);
  if (rope) rope->of_tokens(in, c, 1, n);
  const bool with_v = (c.shared_kv == 0) == (!in.rarely(256));
  const auto position = [&](std::int64_t, std::int64_t t) {
    return wide[static_cast<std::size_t>(t)] == -1 || rope->rope.positions == nullptr ? -1 : rope->rope.positions[t];
  };
  mpfa_counters counters{};
  Checked e;
  const bool written =
      e.ok(mpfa_pages_write(&c, &k.pages, with_v ? &v.pages : nullptr, &kt, with_v ? &vt : nullptr, list,
                            in.rarely(256) ? MPFA_F32
                            : narrow       ? MPFA_I32
                                           : MPFA_I64,
                            n, rope ? &rope->rope : nullptr, &counters, e));
  if (rope) rope->check_queries(written, position);
  if (!written) {
    require(k.untouched() && v.untouched(), "a refused write wrote");
    return;
  }
  data.check_unchanged();
  if (spoiled) return;
  for (std::int64_t t = 0; rope && t < n; ++t) data.turn(*rope, 0, t, position(0, t));
  const mpfa_tensor pk = data.turned(c.kv_heads, c.head_dim), pv = data.plain(c.kv_heads, c.head_dim_v);
  e.must(mpfa_cache_write_slots(w.plain, &pk, with_v ? &pv : nullptr, wide.data(), n, e),
         "a cache refuses what its pages take");
  mpfa_cache_stats met{};
  met.struct_size = sizeof met;
  require(mpfa_cache_get_stats(w.plain, &met, nullptr) == MPFA_OK &&
              std::memcmp(&met.counters, &counters, sizeof counters) == 0,
          "counters differ from those of write_slots");
  for (const std::int64_t slot : wide) {
    if (slot < 0) continue;
    const std::int64_t page = slot / c.page_size, at = slot % c.page_size;
    require_same_token(k, view.k, page, at, page, at);
    if (with_v) require_same_token(v, view.v, page, at, page, at);
  }
  require(with_v || v.untouched(), "V was written where it is part of K");

  std::vector<std::int32_t> ids;
  const std::int64_t count = in.between(0, 3), sequence = in.size(0, 2);
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(in.size(0, 11)));
  const std::int64_t tokens = in.coin() ? count * c.page_size : in.size(0, 60);
  if (!e.ok(mpfa_cache_import_pages(w.cache, sequence, &k.pages, &v.pages, ids.data(), count, tokens, e))) {
    require(w.stats().free_pages == c.num_pages, "a refused import took pages");
    return;
  }
  require(mpfa_cache_get_view(w.cache, &view, nullptr) == MPFA_OK, "a cache has no view");
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = t % c.page_size, page = ids[static_cast<std::size_t>(t / c.page_size)];
    const std::int64_t own = view.page_table[sequence * view.page_table_stride + t / c.page_size];
    require_same_token(k, view.k, page, slot, own, slot);
    require_same_token(v, view.v, page, slot, own, slot);
  }
}

inline void page_table(Input& in) {
  const std::int64_t batch = in.between(0, 3), columns = std::min<std::int64_t>(in.size(0, 6), 6);
  const std::int64_t num_pages = in.size(1, 8), page_size = in.size(1, 20);
  std::vector<std::int32_t> indptr{in.rarely(256) ? 1 : 0}, indices, last;
  for (std::int64_t b = 0; b < batch; ++b) {
    indptr.push_back(indptr.back() + static_cast<std::int32_t>(in.rarely(256) ? -1 : in.between(0, 4)));
    last.push_back(static_cast<std::int32_t>(in.size(0, 20)));
  }
  const std::int64_t count = std::max(0, indptr.back()) - (in.rarely(256) ? 1 : 0);
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(static_cast<std::int32_t>(in.size(0, 7)));
  const auto wide = static_cast<std::size_t>(std::max<std::int64_t>(columns, 0));
  std::vector<std::int32_t> table(static_cast<std::size_t>(batch) * wide, 77);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), 77);
  Checked e;
  if (!e.ok(mpfa_page_table_from_csr(indptr.data(), batch, indices.data(), count, last.data(), num_pages, page_size,
                                     table.data(), columns, lengths.data(), e))) {
    for (const std::int32_t x : table) require(x == 77, "a refused page table was written");
    for (const std::int64_t x : lengths) require(x == 77, "refused lengths were written");
    return;
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const auto used = static_cast<std::size_t>(indptr[b + 1] - indptr[b]);
    require(lengths[b] == (used == 0 ? 0 : static_cast<std::int64_t>(used - 1) * page_size + last[b]),
            "a wrong length");
    for (std::size_t i = 0; i < wide; ++i) {
      const std::int32_t want = i < used ? indices[static_cast<std::size_t>(indptr[b]) + i] : -1;
      require(table[b * wide + i] == want && want < num_pages, "a wrong page table");
    }
  }
}

}  // namespace mpfa::fuzz
