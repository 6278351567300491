// Pages in the caller's memory: orders, strides, one buffer or several, far addresses, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

PagesKind kind_of(const char* format, std::int64_t pages, std::int64_t page_size, std::int64_t heads, std::int64_t d) {
  return {parse_format(format).value(), PagesLayout::linear, pages, page_size, heads, d};
}

/// K and V of a case copied to memory of the caller that `place` chose, then attended to from there.
struct Placed {
  std::vector<std::byte> k_data, k_scales, v_data, v_scales;
  MutablePages k, v;
};

MutablePagePart part(std::vector<std::byte>& buffer, const PagesKind& kind, std::int64_t rows, std::int64_t row_bytes,
                     PageOrder order, std::int64_t padding) {
  if (rows * row_bytes == 0) return {};
  PageStrides s = dense_strides(order, rows, kind.kv_heads, row_bytes + padding);
  s.page += 3 * padding;
  buffer.assign(static_cast<std::size_t>(5 + kind.num_pages * s.page), std::byte{0xFF});
  return {buffer.data(), static_cast<std::int64_t>(buffer.size()), 5, s};
}

MutablePages place(const PagesKind& kind, PageOrder order, std::int64_t padding, std::vector<std::byte>& data,
                   std::vector<std::byte>& scales, const float* global) {
  const PageGeometry g = pages_geometry(kind).value();
  const auto d = part(data, kind, g.data_rows, g.data_row_bytes, order, padding);
  const auto s = part(scales, kind, g.scale_rows, g.scale_row_bytes, order, padding);
  Result<MutablePages> made = make_pages(kind, d, s, global);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.value();
}

std::vector<std::int32_t> all_pages(std::int64_t n, bool reversed) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(reversed ? n - 1 - i : i));
  return ids;
}

TEST(MakePages, EveryOrderAndPaddingReadsAlike) {
  for (const char* text :
       {"bf16", "fp16", "nvfp4,centre=none", "mxfp4,centre=none", "fp8", "int8", "k=int4_g32,v=int8_g32,p=f32"}) {
    const std::string recipe = std::string(text) == "fp16" ? "q=fp16,k=fp16,v=fp16,p=f32" : text;
    Case a(gaussian({2, 3, 4, 64}, 1), gaussian({2, 75, 2, 64}, 2), gaussian({2, 75, 2, 64}, 3),
           {recipe, 16, {75, 41}});
    a.run(attend_cpu);
    const std::vector<double> want = a.out;
    const CacheView own = a.cache.view();
    for (const PageOrder order : {PageOrder::nhd, PageOrder::hnd}) {
      for (const std::int64_t padding : {0, 7}) {
        Placed p;
        p.k = place(k_pages(own).kind, order, padding, p.k_data, p.k_scales, nullptr);
        p.v = place(v_pages(own).kind, order, padding, p.v_data, p.v_scales, nullptr);
        const auto from = all_pages(own.num_pages, false), to = all_pages(own.num_pages, true);
        ASSERT_TRUE(copy_pages(k_pages(own), p.k, from, to).ok());
        ASSERT_TRUE(copy_pages(v_pages(own), p.v, from, to).ok());
        std::vector<std::int32_t> table(own.page_table, own.page_table + 2 * own.page_table_stride);
        for (std::int32_t& id : table) id = static_cast<std::int32_t>(own.num_pages - 1 - id);
        a.tensors.cache.k = p.k.bytes;
        a.tensors.cache.v = p.v.bytes;
        a.tensors.cache.page_table = table.data();
        a.run(attend_cpu);
        EXPECT_EQ(a.out, want) << text << " " << page_order_name(order) << " " << padding;
      }
    }
  }
}

TEST(MakePages, JoinedPagesHoldFourParts) {
  const PagesKind k = kind_of("nvfp4", 3, 16, 2, 64), v = kind_of("nvfp4", 3, 16, 2, 32);
  std::vector<std::byte> buffer(3 * 2 * 16 * (32 + 4 + 16 + 2));
  const JoinedParts p = joined_parts(k, v, PageOrder::hnd, std::span<const std::byte>(buffer)).value();
  EXPECT_EQ(p.k_data.offset, 0);
  EXPECT_EQ(p.k_scales.offset, 2 * 16 * 32);
  EXPECT_EQ(p.v_data.offset, 2 * 16 * (32 + 4));
  EXPECT_EQ(p.v_scales.offset, 2 * 16 * (32 + 4 + 16));
  EXPECT_EQ(p.v_scales.strides.page, 2 * 16 * 54);
  EXPECT_EQ(p.v_scales.strides.head, 16 * 2);
  EXPECT_TRUE(make_pages(v, p.v_data, p.v_scales).ok());
  // 16 bits: K and V of a page after one another, [num_pages, 2, page_size, kv_heads, d].
  const PagesKind wide = kind_of("bf16", 4, 8, 2, 16);
  const std::span<const std::byte> both(buffer.data(), 4 * 2 * 8 * 2 * 32);
  const JoinedParts two = joined_parts(wide, wide, PageOrder::nhd, both).value();
  const Pages values = make_pages(wide, two.v_data, two.v_scales).value();
  EXPECT_EQ(values.bytes.data - buffer.data(), 8 * 2 * 32);
  EXPECT_EQ(values.bytes.data_page_stride, 2 * 8 * 2 * 32);
  EXPECT_EQ(values.bytes.scales, nullptr);
  EXPECT_FALSE(make_pages(kind_of("bf16", 5, 8, 2, 16), two.v_data, two.v_scales).ok());
  EXPECT_THAT(joined_parts(k, v, PageOrder::hnd, std::span<const std::byte>(buffer), 100).status().message(),
              HasSubstr("page_stride is 100 bytes"));
  EXPECT_THAT(joined_parts(k, wide, PageOrder::hnd, std::span<const std::byte>(buffer)).status().message(),
              HasSubstr("same tokens and heads"));
}

TEST(MakePages, RefusesWhatLeavesTheBuffer) {
  const PagesKind kind = kind_of("nvfp4", 4, 16, 2, 64);
  std::vector<std::byte> data(4 * 16 * 2 * 32), scales(4 * 16 * 2 * 4);
  const auto d = static_cast<std::int64_t>(data.size()), s = static_cast<std::int64_t>(scales.size());
  const PageStrides ds = dense_strides(PageOrder::nhd, 16, 2, 32), ss = dense_strides(PageOrder::nhd, 16, 2, 4);
  const PagePart good{data.data(), d, 0, ds}, good_scales{scales.data(), s, 0, ss};
  EXPECT_TRUE(make_pages(kind, good, good_scales).ok());
  const auto refused = [&](const PagePart& a, const PagePart& b) { return make_pages(kind, a, b).status().message(); };
  EXPECT_THAT(refused({data.data(), d - 1, 0, ds}, good_scales), HasSubstr("from byte 0 to 4096 of a buffer of 4095"));
  EXPECT_THAT(refused({data.data(), d, 1, ds}, good_scales), HasSubstr("to 4097 of"));
  EXPECT_THAT(refused({data.data(), d, 0, {-ds.page, ds.head, ds.row}}, good_scales), HasSubstr("from byte -3072"));
  EXPECT_TRUE(make_pages(kind, PagePart{data.data(), d, 3 * ds.page, {-ds.page, ds.head, ds.row}}, good_scales).ok());
  EXPECT_THAT(refused({data.data(), d, 0, {ds.page, ds.head, 31}}, good_scales), HasSubstr("row stride of 31 bytes"));
  EXPECT_THAT(refused({nullptr, d, 0, ds}, good_scales), HasSubstr("data is null"));
  EXPECT_THAT(refused(good, {}), HasSubstr("scales is null"));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refused({data.data(), d, kHuge, {kHuge, kHuge, kHuge}}, good_scales), HasSubstr("of a buffer of"));
  EXPECT_THAT(refused({data.data(), d, -kHuge, {-kHuge, -kHuge, kHuge}}, good_scales), HasSubstr("of a buffer of"));
  PagesKind odd = kind;
  odd.num_pages = 0;
  EXPECT_TRUE(make_pages(odd, good, {}).ok());
  EXPECT_THAT(make_pages(odd, PagePart{data.data(), d, d + 1, ds}, {}).status().message(),
              HasSubstr("begins at byte 4097"));
  odd.num_pages = std::int64_t{1} << 31;
  EXPECT_THAT(make_pages(odd, good, good_scales).status().message(), HasSubstr("num_pages is 2147483648"));
  odd = kind_of("fp8_e4m3_static", 4, 16, 2, 16);
  EXPECT_THAT(make_pages(odd, good, good_scales).status().message(), HasSubstr("stores no scale"));
  // Heads that read the same rows are fine to read and wrong to write.
  const PagePart shared{data.data(), d, 0, {ds.page, 0, ds.row}};
  EXPECT_TRUE(make_pages(kind, shared, good_scales).ok());
  const MutablePagePart written{data.data(), d, 0, {ds.page, 0, ds.row}}, its_scales{scales.data(), s, 0, ss};
  EXPECT_THAT(make_pages(kind, written, its_scales).status().message(), HasSubstr("rows of data overlap"));
}

TEST(MakePages, WrittenPartsShareNoByte) {
  const PagesKind kind = kind_of("nvfp4", 4, 16, 2, 64);  // rows of 32 bytes of codes and 4 of scales
  std::vector<std::byte> buffer(16384);
  const auto made = [&](std::int64_t at, const PageStrides& s, std::int64_t scales_at, const PageStrides& ss) {
    return make_pages(kind, MutablePagePart{buffer.data(), 16384, at, s},
                      MutablePagePart{buffer.data(), 16384, scales_at, ss});
  };
  const PageStrides inlined = dense_strides(PageOrder::nhd, 16, 2, 40);
  EXPECT_TRUE(made(0, inlined, 32, inlined).ok());
  EXPECT_TRUE(made(0, inlined, 36, inlined).ok());
  EXPECT_THAT(made(0, inlined, 31, inlined).status().message(), HasSubstr("codes and rows of scales overlap"));
  EXPECT_FALSE(made(0, inlined, 37, inlined).ok()) << "reaches into the next row";
  const PageStrides d = dense_strides(PageOrder::hnd, 16, 2, 32), s = dense_strides(PageOrder::hnd, 16, 2, 4);
  EXPECT_TRUE(made(0, d, 4 * d.page, s).ok());
  EXPECT_FALSE(made(0, d, 4 * d.page - 1, s).ok());
  EXPECT_FALSE(made(0, d, 0, s).ok());
  // Joined pages, also with the scales of a page in front of its codes.
  const std::int64_t page = d.page + s.page;
  EXPECT_TRUE(made(0, {page, d.head, d.row}, d.page, {page, s.head, s.row}).ok());
  EXPECT_TRUE(made(s.page, {page, d.head, d.row}, 0, {page, s.head, s.row}).ok());
  EXPECT_FALSE(made(1, {page, d.head, d.row}, d.page, {page, s.head, s.row}).ok());
  // Copies inside a pool.
  const MutablePages pool = made(0, inlined, 32, inlined).value();
  const std::vector<std::int32_t> a{0, 1}, b{2, 3}, c{1, 2};
  EXPECT_TRUE(copy_pages(pool.view(), pool, a, b).ok());
  EXPECT_THAT(copy_pages(pool.view(), pool, a, c).message(), HasSubstr("page 1 of one pool is a source and a target"));
  const MutablePages shifted = made(40, inlined, 72, inlined).value();
  EXPECT_THAT(copy_pages(pool.view(), shifted, a, b).message(), HasSubstr("share bytes"));
}

TEST(MakePages, EveryPageSizeReadsAlike) {
  const Tensor q = gaussian({1, 1, 2, 32}, 1), k = gaussian({1, 300, 1, 32}, 2), v = gaussian({1, 300, 1, 32}, 3);
  std::vector<double> want;
  for (std::int64_t size = 1; size <= 256; ++size) {
    Case a(q, k, v, {"q=bf16,k=nvfp4,v=mxfp4,p=f32", size, {}});
    const CacheView own = a.cache.view();
    std::vector<std::byte> kd, ks, vd, vs;
    const MutablePages kp = place(k_pages(own).kind, PageOrder::nhd, 0, kd, ks, nullptr),
                       vp = place(v_pages(own).kind, PageOrder::hnd, 0, vd, vs, nullptr);
    const std::span<const std::int32_t> ids(own.page_table, static_cast<std::size_t>((300 + size - 1) / size));
    ASSERT_TRUE(copy_pages(k_pages(own), kp, ids, ids, 300).ok());
    ASSERT_TRUE(copy_pages(v_pages(own), vp, ids, ids, 300).ok());
    a.tensors.cache.k = kp.bytes;
    a.tensors.cache.v = vp.bytes;
    a.run(attend_cpu);
    if (size == 1) want = a.out;
    EXPECT_EQ(a.out, want) << size;
  }
}

TEST(Addresses, HaveSixtyFourBits) {
  for (const int bits : {31, 32, 33}) {
    // bf16 pages of 256 tokens, 8 heads and 128 channels: page 2^bits / (256 * 8 * 128) begins at element 2^bits.
    const PageStrides s = dense_strides(PageOrder::nhd, 256, 8, 2 * 128);
    const std::int64_t page = (std::int64_t{1} << bits) / (256 * 8 * 128);
    OperandPages o;
    o.data_page_stride = o.scale_page_stride = s.page;
    o.data_head_stride = o.scale_head_stride = s.head;
    EXPECT_EQ(o.data_offset(page, 0), 2 * (std::int64_t{1} << bits));
    EXPECT_EQ(o.scale_offset(page, 7), 2 * ((std::int64_t{1} << bits) + 7 * 128));
    const PageStrides one_page = dense_strides(PageOrder::hnd, std::int64_t{1} << 24, 1 << (bits - 24), 128);
    EXPECT_EQ(one_page.page, 128 * (std::int64_t{1} << bits));
  }
}

TEST(Addresses, PoolsPastFourGigabytesAreReadAtBothEnds) {
  constexpr std::int64_t kPages = 40000, kPageSize = 256, kHeads = 2, kD = 128;  // 5.2e9 bytes of bf16 per operand
  const PageStrides s = dense_strides(PageOrder::hnd, kPageSize, kHeads, 2 * kD);
  const std::int64_t bytes = kPages * s.page;
  ASSERT_GT(bytes, std::int64_t{1} << 32);
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space for " << bytes << " bytes";
  auto* base = static_cast<std::byte*>(memory);
  Case a(gaussian({1, 2, kHeads, kD}, 1), gaussian({1, 300, kHeads, kD}, 2), gaussian({1, 300, kHeads, kD}, 3),
         {"bf16", kPageSize, {}});
  a.run(attend_cpu);
  const std::vector<double> want = a.out;
  // Keys 0..255 in the last page and the rest in the first; K and V share the pool, V two pages from K.
  const PagesKind half = kind_of("bf16", kPages - 2, kPageSize, kHeads, kD);
  const MutablePages k = make_pages(half, MutablePagePart{base, bytes, 0, s}, MutablePagePart{}).value();
  const MutablePages v = make_pages(half, MutablePagePart{base, bytes, 2 * s.page, s}, MutablePagePart{}).value();
  const CacheView own = a.cache.view();
  const std::int32_t table[] = {kPages - 3, 0};
  const std::span<const std::int32_t> from(own.page_table, 2);
  ASSERT_TRUE(copy_pages(k_pages(own), k, from, table).ok());
  ASSERT_TRUE(copy_pages(v_pages(own), v, from, table).ok());
  a.tensors.cache.num_pages = half.num_pages;
  a.tensors.cache.k = k.bytes;
  a.tensors.cache.v = v.bytes;
  a.tensors.cache.page_table = table;
  a.run(attend_cpu);
  munmap(memory, static_cast<std::size_t>(bytes));
  EXPECT_EQ(a.out, want);
}

}  // namespace
}  // namespace mpfa::test
