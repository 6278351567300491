// Pages of the caller: described, copied between layouts, converted in place, written by slot, and page tables in
// compressed rows. A call is refused and writes nothing, or its bytes are those of the plainest way to them.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/owned_pages.hpp"
#include "tests/fuzz/sixteen_bits.hpp"

namespace mpfa::fuzz {

constexpr const char* kLayouts[] = {nullptr, "linear", "page_swizzle4", "tile_128x4", "ggml", nullptr, nullptr, "nhd"};

inline const char* any_format(Input& in) {
  const char* const name = mpfa_format_name(in.between(0, 42));
  return name == nullptr ? "bf17" : name;
}

/// The first few indices of an extent and the last one.
inline std::vector<std::int64_t> some(std::int64_t extent) {
  std::vector<std::int64_t> x;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(extent, 8); ++i) x.push_back(i);
  if (extent > 8) x.push_back(extent - 1);
  return x;
}

/// Rows of accepted pages lie in their buffers: AddressSanitizer sees one that does not.
inline void touch(const mpfa_operand_pages& o, const mpfa_pages& p) {
  const PagesKind kind{
      parse_format(p.format).value(), PagesLayout::linear, p.num_pages, p.page_size, p.kv_heads, p.head_dim};
  const PageGeometry g = pages_geometry(kind).value();
  const auto read = [](const void* part, std::int64_t offset, std::int64_t n) {
    const auto* row = static_cast<const volatile std::uint8_t*>(part) + offset;
    (void)row[0];
    (void)row[n - 1];
  };
  for (const std::int64_t page : some(p.num_pages)) {
    for (const std::int64_t h : some(p.kv_heads)) {
      const std::int64_t data = page * o.data_page_stride + h * o.data_head_stride;
      for (const std::int64_t r : some(g.data_rows)) read(o.data, data + r * o.data_row_stride, g.data_row_bytes);
      if (g.scale_row_bytes == 0) continue;  // strides of scales are then anything
      const std::int64_t scale = page * o.scale_page_stride + h * o.scale_head_stride;
      for (const std::int64_t r : some(g.scale_rows)) read(o.scales, scale + r * o.scale_row_stride, g.scale_row_bytes);
    }
  }
}

inline void describe(Input& in) {
  OwnedPages p;
  if (!p.make(in, any_format(in), in.pick(kLayouts), in.size(0, 4), in.size(1, 40), in.size(1, 3), in.size(1, 130))) {
    return;
  }
  p.spoil(in);
  mpfa_operand_pages o{};
  Checked e;
  if (e.ok(mpfa_pages_operand(&p.pages, &o, e))) touch(o, p.pages);
}

inline void join(Input& in) {
  mpfa_pages k{}, v{};
  for (mpfa_pages* p : {&k, &v}) {
    mpfa_pages_init(p, sizeof *p);
    p->format = any_format(in);
    p->layout = in.rarely(4) ? in.pick(kLayouts) : nullptr;
    p->num_pages = in.size(0, 4);
    p->page_size = in.size(1, 20);
    p->kv_heads = in.size(1, 3);
    p->head_dim = in.size(1, 70);
  }
  if (!in.rarely(4)) v.num_pages = k.num_pages, v.page_size = k.page_size, v.kv_heads = k.kv_heads;
  std::vector<std::uint8_t> buffer(static_cast<std::size_t>(in.between(0, 60000)));
  buffer.shrink_to_fit();
  Checked e;
  const std::int64_t stride = in.coin() ? 0 : in.size(0, 20000);
  if (!e.ok(mpfa_pages_joined(&k, &v, in.coin() ? "nhd" : "hnd", buffer.data(), buffer.size(), stride, e))) return;
  for (const mpfa_pages* p : {&k, &v}) {
    mpfa_operand_pages o{};
    if (e.ok(mpfa_pages_operand(p, &o, e))) touch(o, *p);
  }
}

/// To another layout and back: the same bytes.
inline void copy(Input& in) {
  constexpr const char* kTravellers[] = {"mxfp4", "nvfp4", "nvfp4_4over6", "mxfp8_e4m3", "int8_g32", "int4_g32"};
  const bool any = in.rarely(4);
  const char* const format = any ? any_format(in) : in.pick(kTravellers);
  const std::int64_t n = in.size(1, 4), slots = any ? in.size(1, 40) : 4 * in.between(1, 8);
  const std::int64_t heads = in.size(1, 3), d = any ? in.size(1, 130) : 64 * in.between(1, 2);
  const char* const layout = in.pick(kLayouts);
  OwnedPages from, to, back;
  if (!from.make(in, format, layout, n, slots, heads, d) || !back.make(in, format, layout, n, slots, heads, d)) return;
  if (!to.make(in, in.rarely(256) ? any_format(in) : format, in.pick(kLayouts), in.coin() ? n : in.size(0, 5),
               in.rarely(256) ? in.size(1, 40) : slots, heads, d)) {
    return;
  }
  from.fill(in.bits(2));
  std::vector<std::int32_t> from_ids, to_ids;
  const std::int64_t count = in.between(0, 4);
  for (std::int64_t i = 0; i < count; ++i) {
    from_ids.push_back(static_cast<std::int32_t>(in.size(0, 3)));
    to_ids.push_back(in.coin() ? static_cast<std::int32_t>(i) : static_cast<std::int32_t>(in.size(0, 4)));
  }
  const std::int64_t tokens = in.coin() ? all_slots : in.size(0, count * std::clamp<std::int64_t>(slots, 0, 40));
  const bool spoiled = in.coin() && to.spoil(in);
  Checked e;
  if (!e.ok(mpfa_pages_copy(&from.pages, &to.pages, from_ids.data(), to_ids.data(), in.rarely(256) ? -1 : count, tokens,
                            e))) {
    require(to.untouched(), "a refused copy wrote");
    return;
  }
  std::vector<std::int32_t> sorted = from_ids;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (spoiled || !distinct) return;
  back.pages.global = from.pages.global;
  Checked second;
  second.must(mpfa_pages_copy(&to.pages, &back.pages, to_ids.data(), from_ids.data(), count, tokens, second),
              "copied pages cannot be copied back");
  // Scales in tiles have bytes of no token between them.
  if (tokens != all_slots || (layout != nullptr && std::strcmp(layout, "tile_128x4") == 0)) return;
  for (const std::int32_t id : from_ids) {
    for (std::int64_t h = 0; h < heads; ++h)
      require(back.content(id, h) == from.content(id, h), "pages do not come back");
  }
}

/// 16-bit pages in place against the quantiser over the same numbers.
inline void convert(Input& in) {
  const std::int64_t n = in.size(0, 4), slots = in.size(1, 40), heads = in.size(1, 3), d = in.size(1, 130);
  const bool bf16 = in.coin();
  OwnedPages wide;
  const char* const source = in.rarely(256) ? any_format(in) : bf16 ? "bf16" : "fp16";
  if (!wide.make(in, source, in.rarely(256) ? in.pick(kLayouts) : nullptr, n, slots, heads, d)) return;
  wide.fill(in.bits(2));
  const bool numbers = std::strcmp(source, bf16 ? "bf16" : "fp16") == 0;
  std::vector<float> values(static_cast<std::size_t>(n * heads * slots * d)), mean(static_cast<std::size_t>(heads * d));
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = number(2, i) / 4;
  for (std::int64_t i = 0; numbers && i < static_cast<std::int64_t>(values.size()); ++i) {
    const std::uint16_t bits = to_sixteen(bf16, number(1, static_cast<std::uint64_t>(i)));
    values[static_cast<std::size_t>(i)] = from_sixteen(bf16, bits);
    const std::int64_t c = i % d, t = i / d % slots, h = i / d / slots % heads, page = i / d / slots / heads;
    std::memcpy(wide.row(page, h, t) + 2 * c, &bits, sizeof bits);
  }
  const std::vector<std::byte> before = wide.data();
  std::vector<std::int32_t> ids;
  const std::int64_t count = in.between(0, 3);
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(in.size(0, 3)));
  const bool spoiled = in.rarely(8) && wide.spoil(in);
  const float* const m = in.coin() ? mean.data() : nullptr;
  const float* const global = in.coin() ? wide.global().data() : nullptr;
  const char* const format = any_format(in);
  mpfa_pages packed{};
  mpfa_counters counters{};
  Checked e;
  if (!e.ok(mpfa_pages_convert(&wide.pages, format, ids.data(), in.rarely(256) ? -1 : count, m, global, &packed,
                               &counters, e))) {
    require(wide.data() == before, "a refused conversion wrote");
    return;
  }
  mpfa_operand_pages o{};
  e.must(mpfa_pages_operand(&packed, &o, e), "converted pages cannot be read");
  if (spoiled || !numbers) return;
  mpfa_geometry g{};
  e.must(mpfa_format_geometry(format, d, slots, &g, e), "a format of converted pages has no geometry");
  for (const std::int32_t id : ids) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<float> x(values.data() + (id * heads + h) * slots * d,
                           values.data() + (id * heads + h + 1) * slots * d);
      for (std::size_t i = 0; m != nullptr && i < x.size(); ++i) x[i] -= m[h * d + static_cast<std::int64_t>(i) % d];
      std::vector<std::uint8_t> data(static_cast<std::size_t>(g.data_rows * g.data_row_bytes));
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(g.scale_rows * g.scale_row_bytes));
      e.must(mpfa_quantize(format, d, slots, x.data(), d, global == nullptr ? 1.0F : global[h], data.data(),
                           data.size(), scales.data(), scales.size(), nullptr, e),
             "numbers of converted pages cannot be quantised");
      const auto* codes = static_cast<const std::uint8_t*>(o.data) + id * o.data_page_stride + h * o.data_head_stride;
      require(std::equal(data.begin(), data.end(), codes), "converted codes differ");
      if (scales.empty()) continue;
      const auto* s = static_cast<const std::uint8_t*>(o.scales) + id * o.scale_page_stride + h * o.scale_head_stride;
      require(std::equal(scales.begin(), scales.end(), s), "converted scales differ");
    }
  }
}

}  // namespace mpfa::fuzz
