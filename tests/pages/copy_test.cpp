// Copies between the layouts of different programs: known positions, the way back bit for bit, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "mpfa/layout.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;
constexpr std::int64_t kPages = 3, kPageSize = 16, kHeads = 2, kD = 128;

/// Pages with buffers of their own.
struct Buffers {
  explicit Buffers(const PagesKind& kind, PageOrder order = PageOrder::nhd) : g(pages_geometry(kind).value()) {
    const PageStrides d = dense_strides(order, g.data_rows, kind.kv_heads, g.data_row_bytes),
                      s = dense_strides(order, g.scale_rows, kind.kv_heads, g.scale_row_bytes);
    data.assign(static_cast<std::size_t>(kind.num_pages * d.page), std::byte{0xEE});
    scales.assign(static_cast<std::size_t>(kind.num_pages * s.page), std::byte{0xEE});
    pages = make_pages(kind, MutablePagePart{data.data(), static_cast<std::int64_t>(data.size()), 0, d},
                       MutablePagePart{scales.data(), static_cast<std::int64_t>(scales.size()), 0, s})
                .value();
  }
  PageGeometry g;
  std::vector<std::byte> data, scales;
  MutablePages pages;
};

PagesKind kind_of(const char* format, PagesLayout layout) {
  return {parse_format(format).value(), layout, kPages, kPageSize, kHeads, kD};
}

/// Bytes that tell their place; finite positive scales.
void fill(Buffers& b) {
  for (std::size_t i = 0; i < b.data.size(); ++i) b.data[i] = static_cast<std::byte>(i * 7 % 251);
  for (std::size_t i = 0; i < b.scales.size(); ++i) b.scales[i] = static_cast<std::byte>(1 + i * 5 % 113);
}

const std::vector<std::int32_t> kInOrder{0, 1, 2}, kShuffled{2, 0, 1};

TEST(CopyPages, EveryLayoutAndBackGivesTheSameBytes) {
  const PagesLayout layouts[] = {PagesLayout::linear, PagesLayout::page_swizzle4, PagesLayout::tile_128x4,
                                 PagesLayout::ggml};
  for (const char* format : {"nvfp4", "mxfp4", "mxfp8_e4m3", "int8_g32", "int4_g32"}) {
    Buffers ours(kind_of(format, PagesLayout::linear));
    fill(ours);
    int held = 0;
    for (const PagesLayout layout : layouts) {
      const PagesKind kind = kind_of(format, layout);
      if (!pages_geometry(kind).ok()) continue;
      ++held;
      for (const PageOrder order : {PageOrder::nhd, PageOrder::hnd}) {
        Buffers foreign(kind, order), back(kind_of(format, PagesLayout::linear));
        ASSERT_TRUE(copy_pages(ours.pages.view(), foreign.pages, kInOrder, kShuffled).ok());
        ASSERT_TRUE(copy_pages(foreign.pages.view(), back.pages, kShuffled, kInOrder).ok());
        EXPECT_EQ(back.data, ours.data) << format << " " << pages_layout_name(layout);
        EXPECT_EQ(back.scales, ours.scales) << format << " " << pages_layout_name(layout);
      }
    }
    const std::string name = format;
    EXPECT_EQ(held, name == "nvfp4" || name == "mxfp4" ? 4 : name == "mxfp8_e4m3" ? 3 : 2) << format;
  }
}

TEST(CopyPages, SwizzledScalesLieWhereTheDocumentSays) {
  Buffers ours(kind_of("nvfp4", PagesLayout::linear)), v(kind_of("nvfp4", PagesLayout::page_swizzle4), PageOrder::hnd),
      tiles(kind_of("nvfp4", PagesLayout::tile_128x4));
  fill(ours);
  const std::vector<std::int32_t> one{1};
  ASSERT_TRUE(copy_pages(ours.pages.view(), v.pages, one, one).ok());
  ASSERT_TRUE(copy_pages(ours.pages.view(), tiles.pages, one, one).ok());
  const std::int64_t blocks = kD / 16;
  for (std::int64_t t = 0; t < kPageSize; ++t) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::byte scale = ours.pages.page(1, h).scales[t * kHeads * blocks + b];
        EXPECT_EQ(v.pages.page(1, h).scales[(t / 4 * 4 + b / 2) * blocks + b % 2 * 4 + t % 4], scale);
        EXPECT_EQ(tiles.pages.page(1, h).scales[b / 4 * 512 + t % 32 * 16 + b % 4], scale);
      }
    }
  }
  // With a number of tokens the slots past them are zero, whatever lies there.
  ASSERT_TRUE(copy_pages(ours.pages.view(), tiles.pages, one, one, 5).ok());
  EXPECT_EQ(tiles.pages.page(1, 1).scales[4 * 16], ours.pages.page(1, 1).scales[4 * kHeads * blocks]);
  EXPECT_EQ(tiles.pages.page(1, 1).scales[5 * 16], std::byte{0});
  EXPECT_EQ(tiles.pages.page(1, 1).data[5 * tiles.pages.bytes.data_row_stride + 1], std::byte{0});
  // Nothing else was touched.
  EXPECT_EQ(v.pages.page(0, 0).scales[0], std::byte{0xEE});
  EXPECT_EQ(v.pages.page(2, 1).data[0], std::byte{0xEE});
}

TEST(CopyPages, AttendOverImportedPagesEqualsAttendOverOurs) {
  for (const char* format : {"nvfp4", "mxfp4", "int8_g32", "int4_g32", "nvfp4_4over6"}) {
    const std::string recipe = std::string("q=bf16,k=") + format + ",v=" + format + ",p=f32";
    Case a(gaussian({2, 3, 4, kD}, 1), gaussian({2, 70, kHeads, kD}, 2), gaussian({2, 70, kHeads, kD}, 3),
           {recipe, kPageSize, {70, 33}});
    // Slots past a length hold anything: here NaN scales, which ggml blocks could not.
    const CacheView raw = a.cache.view();
    const std::int64_t scale_row = page_geometry(raw.k_format, kD, kPageSize).scale_row_bytes;
    std::byte* tail = a.cache.storage() + (raw.k.scales - a.cache.storage()) + raw.k.scale_offset(raw.page_table[4], 0);
    std::memset(tail + 6 * scale_row, 0xFF, static_cast<std::size_t>(10 * scale_row));
    a.run(attend_cpu);
    const std::vector<double> want = a.out;
    const CacheView own = a.cache.view();
    for (const PagesLayout layout : {PagesLayout::page_swizzle4, PagesLayout::ggml}) {
      PagesKind kind = k_pages(own).kind, linear = kind;
      kind.layout = layout;
      if (!pages_geometry(kind).ok()) continue;
      Buffers k(kind), v(kind), k_back(linear), v_back(linear);
      for (std::int64_t b = 0; b < 2; ++b) {
        // The last slots of the last page were never written and can hold any scale.
        const std::int64_t n = own.lengths[b];
        const std::span<const std::int32_t> ids(own.page_table + b * own.page_table_stride,
                                                static_cast<std::size_t>((n + kPageSize - 1) / kPageSize));
        ASSERT_TRUE(copy_pages(k_pages(own), k.pages, ids, ids, n).ok());
        ASSERT_TRUE(copy_pages(v_pages(own), v.pages, ids, ids, n).ok());
        ASSERT_TRUE(copy_pages(k.pages.view(), k_back.pages, ids, ids, n).ok());
        ASSERT_TRUE(copy_pages(v.pages.view(), v_back.pages, ids, ids).ok());
      }
      a.tensors.cache.k = k_back.pages.bytes;
      a.tensors.cache.v = v_back.pages.bytes;
      a.run(attend_cpu);
      EXPECT_EQ(a.out, want) << format << " " << pages_layout_name(layout);
    }
  }
}

TEST(CopyPages, GgmlIntegersReadAsGgmlReadsThem) {
  // q4_0: value = d * (code - 8) with codes 0..15 and a scale of any sign; q8_0: d * int8.
  for (const bool four : {true, false}) {
    Buffers blocks(kind_of(four ? "int4_g32" : "int8_g32", PagesLayout::ggml)),
        ours(kind_of(four ? "int4_g32" : "int8_g32", PagesLayout::linear));
    for (std::size_t i = 0; i < blocks.data.size(); ++i) blocks.data[i] = static_cast<std::byte>(i * 29 % 256);
    const std::int64_t size = four ? 18 : 34;
    for (std::size_t i = 0; i < blocks.data.size(); i += static_cast<std::size_t>(size)) {
      blocks.data[i] = std::byte{0};
      blocks.data[i + 1] = static_cast<std::byte>(i % 3 == 0 ? 0xB8 : 0x34);  // -0.5 or 0.25
    }
    ASSERT_TRUE(copy_pages(blocks.pages.view(), ours.pages, kInOrder, kInOrder).ok());
    std::vector<float> x(kD);
    for (std::int64_t t = 0; t < kPageSize; ++t) {
      dequantise_tokens(ours.pages.kind.format, kD, t, 1, ours.pages.page(2, 1), 1.0F, x.data(), kD, 1);
      const std::byte* row = blocks.pages.page(2, 1).data + t * blocks.pages.bytes.data_row_stride;
      for (std::int64_t c = 0; c < kD; ++c) {
        const std::byte* block = row + c / 32 * size;
        const auto j = static_cast<int>(c % 32);
        const auto byte = static_cast<int>(block[2 + (four ? j % 16 : j)]);
        const int code = !four ? static_cast<std::int8_t>(byte) : (j < 16 ? byte & 15 : byte >> 4) - 8;
        EXPECT_EQ(x[static_cast<std::size_t>(c)],
                  static_cast<float>(code) * (block[1] == std::byte{0xB8} ? -0.5F : 0.25F));
      }
    }
    // Kernels read the codes -8 and -128, which our quantisers never write, and negative scales as the reference does.
    const std::string name = four ? "int4_g32" : "int8_g32";
    Case a(gaussian({1, 2, 4, kD}, 1), gaussian({1, 40, kHeads, kD}, 2), gaussian({1, 40, kHeads, kD}, 3),
           {"q=f32,k=" + name + ",v=" + name + ",p=f32", kPageSize, {}});
    a.problem.softmax_scale = 1e-4F;  // weights that stay near each other
    a.tensors.cache.num_pages = kPages;
    a.tensors.cache.k = a.tensors.cache.v = ours.pages.bytes;
    a.tensors.cache.page_table = kShuffled.data();
    a.run(reference_fn(reference::Precision::f64));
    const std::vector<double> want = a.out;
    a.run(attend_cpu);
    EXPECT_LT(relative_l2(a.out, want), 1e-5) << name;
    Buffers again(blocks.pages.kind);
    ASSERT_TRUE(copy_pages(ours.pages.view(), again.pages, kInOrder, kInOrder).ok());
    EXPECT_EQ(again.data, blocks.data);
  }
}

TEST(CopyPages, RefusesWithNothingWritten) {
  Buffers nv(kind_of("nvfp4", PagesLayout::linear)), blocks(kind_of("nvfp4", PagesLayout::ggml)),
      mx(kind_of("mxfp4", PagesLayout::ggml));
  fill(nv);
  EXPECT_THAT(copy_pages(nv.pages.view(), mx.pages, kInOrder, kInOrder).message(),
              HasSubstr("the source is 'nvfp4 linear page_size=16 kv_heads=2 head_dim=128', the target 'mxfp4 ggml"));
  nv.scales.back() = std::byte{0x7F};
  EXPECT_THAT(copy_pages(nv.pages.view(), blocks.pages, kInOrder, kInOrder).message(), HasSubstr("0x7F"));
  EXPECT_EQ(blocks.data, std::vector<std::byte>(blocks.data.size(), std::byte{0xEE})) << "no page is half copied";
  const auto refused = [&](const std::vector<std::int32_t>& from, const std::vector<std::int32_t>& to) {
    return copy_pages(nv.pages.view(), blocks.pages, from, to).message();
  };
  EXPECT_THAT(refused({0, 3}, {0, 1}), HasSubstr("from_ids[1] is 3"));
  EXPECT_THAT(refused({0, 1}, {0, -1}), HasSubstr("to_ids[1] is -1"));
  EXPECT_THAT(refused({0, 1}, {2, 2}), HasSubstr("page 2 is a target twice"));
  EXPECT_THAT(copy_pages(nv.pages.view(), blocks.pages, kInOrder, kInOrder, 32).message(),
              HasSubstr("32 tokens do not fill 3 pages"));
  EXPECT_THAT(refused({0, 1}, {2}), HasSubstr("2 source ids and 1 target ids"));
  EXPECT_TRUE(copy_pages(nv.pages.view(), blocks.pages, {}, {}).ok());
}

TEST(PagesKinds, OfAnotherRuleHaveTheSameBytes) {
  Buffers ours(kind_of("nvfp4_4over6", PagesLayout::linear)), theirs(kind_of("nvfp4", PagesLayout::ggml));
  fill(ours);
  EXPECT_TRUE(copy_pages(ours.pages.view(), theirs.pages, kInOrder, kShuffled).ok());
  EXPECT_TRUE(same_bytes(parse_format("mxfp4").value(), parse_format("mxfp4_ceil").value()));
  EXPECT_FALSE(same_bytes(parse_format("mxfp4").value(), parse_format("nvfp4").value()));
  EXPECT_FALSE(same_bytes(parse_format("mxfp4").value(), parse_format("mxfp4@keys").value()));
}

TEST(PagesKinds, SayWhyALayoutDoesNotFit) {
  const auto why = [](const char* format, PagesLayout layout, std::int64_t page_size, std::int64_t d) {
    return pages_geometry({parse_format(format).value(), layout, 1, page_size, 1, d}).status().message();
  };
  EXPECT_THAT(why("nvfp4", PagesLayout::page_swizzle4, 6, 128), HasSubstr("multiples of 4"));
  EXPECT_THAT(why("nvfp4", PagesLayout::page_swizzle4, 16, 48), HasSubstr("multiples of 4"));
  EXPECT_THAT(why("fp8_e4m3", PagesLayout::tile_128x4, 16, 128), HasSubstr("one-byte scales"));
  EXPECT_THAT(why("nvfp4@keys", PagesLayout::page_swizzle4, 16, 128), HasSubstr("use linear"));
  EXPECT_THAT(why("fp8_e4m3", PagesLayout::ggml, 16, 128), HasSubstr("has no ggml block"));
  EXPECT_THAT(why("nvfp4", PagesLayout::ggml, 16, 96), HasSubstr("multiple of 64"));
  EXPECT_EQ(why("nvfp4", PagesLayout::tile_128x4, 16, 48), "");
}

TEST(PagesTags, RefuseAnotherLayout) {
  const PagesKind swizzled = kind_of("nvfp4", PagesLayout::page_swizzle4),
                  linear = kind_of("nvfp4", PagesLayout::linear);
  EXPECT_EQ(pages_tag(swizzled), "nvfp4 page_swizzle4 page_size=16 kv_heads=2 head_dim=128");
  EXPECT_TRUE(check_pages_tag(swizzled, pages_tag(swizzled)).ok());
  EXPECT_THAT(check_pages_tag(linear, pages_tag(swizzled)).message(),
              HasSubstr("the pages were described as 'nvfp4 linear"));
  EXPECT_EQ(parse_pages_layout("tile_128x4").value(), PagesLayout::tile_128x4);
  EXPECT_THAT(parse_pages_layout("vllm").status().message(), HasSubstr("page_swizzle4"));
  EXPECT_EQ(parse_page_order("HND").value(), PageOrder::hnd);
  EXPECT_THAT(parse_page_order("NDH").status().message(), HasSubstr("nhd, hnd"));
}

}  // namespace
}  // namespace mpfa::test
