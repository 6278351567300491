// Pools that the caller owns beside a cache of the same configuration, and whether both hold the same bytes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {

/// K or V pages of a config in one buffer, NHD with rows `padding` bytes apart.
struct Pool {
  Pool(const CacheConfig& c, const BlockFormat& f, std::int64_t d, std::int64_t padding,
       PagesLayout layout = PagesLayout::linear) {
    const PagesKind kind{f, layout, c.num_pages, c.page_size, c.kv_heads, d};
    const PageGeometry g = pages_geometry(kind).value();
    const std::int64_t row = g.data_row_bytes + g.scale_row_bytes + padding;
    const PageStrides s = dense_strides(PageOrder::nhd, g.data_rows, c.kv_heads, row);
    // Codes and scales of a token side by side; a row before the first page that nobody may touch.
    bytes.assign(static_cast<std::size_t>(s.row + c.num_pages * s.page), std::byte{0xFF});
    const auto size = static_cast<std::int64_t>(bytes.size());
    pages = make_pages(kind, MutablePagePart{bytes.data(), size, s.row, s},
                       MutablePagePart{bytes.data(), size, s.row + g.data_row_bytes, s})
                .value();
  }
  std::vector<std::byte> bytes;
  MutablePages pages;
};

struct Pools {
  explicit Pools(const CacheConfig& c, std::int64_t padding = 3)
      : config(c), k(c, c.recipe.k, c.head_dim, padding), v(c, c.recipe.v, c.head_dim_v, padding) {}
  template <class Slot>
  Status write(const Ids& ids, const std::vector<Slot>& slots) {
    return quantise_to_pages(config, k.pages, v.pages, keys(ids).view(), values(ids).view(), std::span(slots),
                             &counters);
  }
  CacheConfig config;
  Pool k, v;
  QuantiseCounters counters;
};

/// Codes and scales of every slot that is not -1.
inline void expect_same_rows(const Pages& a, const Pages& b, const std::vector<std::int64_t>& slots,
                             const std::string& text) {
  const PageGeometry g = pages_geometry(a.kind).value();
  const auto same = [](const std::byte* x, const std::byte* y, std::int64_t n) {
    return n == 0 || std::memcmp(x, y, static_cast<std::size_t>(n)) == 0;
  };
  for (const std::int64_t slot : slots) {
    const std::int64_t row = slot % a.kind.page_size;
    for (std::int64_t h = 0; slot >= 0 && h < a.kind.kv_heads; ++h) {
      const ConstPageBytes x = a.bytes.page(slot / a.kind.page_size, h), y = b.bytes.page(slot / a.kind.page_size, h);
      EXPECT_TRUE(same(x.data + row * x.data_row_stride, y.data + row * y.data_row_stride, g.data_row_bytes)) << text;
      EXPECT_TRUE(same(x.scales + row * x.scale_row_stride, y.scales + row * y.scale_row_stride, g.scale_row_bytes))
          << text;
    }
  }
}
inline void expect_same_tokens(const PagedCache& cache, const Pools& pools, const std::vector<std::int64_t>& slots,
                               const std::string& text) {
  const CacheView own = cache.view();
  expect_same_rows(k_pages(own), pools.k.pages.view(), slots, text);
  if (!own.shared_kv) expect_same_rows(v_pages(own), pools.v.pages.view(), slots, text);
}

}  // namespace mpfa::test
