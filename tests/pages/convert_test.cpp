// 16-bit pages of a caller become packed ones in place: the bytes of a fresh quantisation, and no others.
#include "cache/convert.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "formats/elements.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPages = 5, kPageSize = 64, kHeads = 2, kDim = 48;
constexpr std::int64_t kElements = kPageSize * kHeads * kDim;
const std::vector<std::int32_t> kIds{3, 0, 4};

/// A pool of K and V pages side by side, [page][operand], each contiguous by token or by head.
struct Pool {
  DType dtype;
  bool by_head;
  std::vector<std::uint16_t> memory = std::vector<std::uint16_t>(kPages * 2 * kElements);

  Pool(DType t, bool heads_first) : dtype(t), by_head(heads_first) {
    const Tensor x = gaussian({kPages * 2, kPageSize, kHeads, kDim}, 3);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const float v = x.data[i] * (i % 64 == 5 ? 30.0F : 1.0F);
      memory[i] =
          static_cast<std::uint16_t>(t == DType::bf16 ? formats::Bf16::encode(v).bits : formats::F16::encode(v).bits);
    }
  }
  [[nodiscard]] MutablePages operand(std::int64_t o) {
    const PagesKind kind{parse_format(dtype == DType::bf16 ? "bf16" : "fp16").value(),
                         PagesLayout::linear,
                         kPages,
                         kPageSize,
                         kHeads,
                         kDim};
    PageStrides strides = dense_strides(by_head ? PageOrder::hnd : PageOrder::nhd, kPageSize, kHeads, kDim * 2);
    strides.page = 2 * kElements * 2;
    return make_pages(kind,
                      MutablePagePart{reinterpret_cast<std::byte*>(memory.data()),
                                      static_cast<std::int64_t>(memory.size()) * 2, o * kElements * 2, strides},
                      MutablePagePart{})
        .value();
  }
  /// Page `id` of operand o as tokens for an append.
  [[nodiscard]] TensorView tokens(std::int64_t o, std::int32_t id) const {
    return {memory.data() + (id * 2 + o) * kElements,
            dtype,
            {1, kPageSize, kHeads, kDim},
            {kElements, by_head ? kDim : kHeads * kDim, by_head ? kPageSize * kDim : kDim, 1}};
  }
  [[nodiscard]] std::vector<float> rows(std::int64_t o, std::int32_t page, std::int64_t head) const {
    const TensorView p = tokens(o, page);
    std::vector<float> x(kPageSize * kDim);
    for (std::int64_t t = 0; t < kPageSize; ++t) {
      load_row(p.data, dtype, t * p.stride[1] + head * p.stride[2], 1, kDim, &x[t * kDim]);
    }
    return x;
  }
};

TEST(ConvertPages, BytesAreThoseOfAFreshPageAndNeighboursKeepTheirs) {
  const Tensor mean = gaussian({1, 1, kHeads, kDim}, 9);
  const std::vector<float> global{0.05F, 0.11F};
  for (const std::string& name : format_names()) {
    const BlockFormat f = parse_format(name).value();
    if (element_bits(f.element) > 8) continue;
    for (const bool by_head : {false, true}) {
      for (const bool centred : {false, true}) {
        Pool pool(centred ? DType::f16 : DType::bf16, by_head), before = pool;
        const float* m = centred ? mean.data.data() : nullptr;
        const float* g = f.rule == ScaleRule::fixed || centred ? global.data() : nullptr;
        QuantiseCounters met, want;
        const Result<MutablePages> view = convert_pages(pool.operand(1), f, kIds, m, g, &met);
        ASSERT_TRUE(view.ok()) << view.status().message();
        const PageGeometry geometry = page_geometry(f, kDim, kPageSize);
        const std::int64_t used = (geometry.data_bytes() * kHeads + 15) / 16 * 16 + geometry.scale_bytes() * kHeads;
        std::vector<std::byte> written(pool.memory.size() * 2, std::byte{0});
        for (const std::int32_t id : kIds) {
          std::fill_n(written.begin() + (id * 2 + 1) * kElements * 2, used, std::byte{1});
          for (std::int64_t h = 0; h < kHeads; ++h) {
            std::vector<float> x = before.rows(1, id, h);
            for (std::int64_t i = 0; centred && i < kPageSize * kDim; ++i) x[i] -= mean.data[h * kDim + i % kDim];
            std::vector<std::byte> data(geometry.data_bytes()), scales(geometry.scale_bytes() + 1);
            quantise_tokens(f, kDim, 0, kPageSize, x.data(), kDim, g == nullptr ? 1.0F : global[h],
                            {data.data(), geometry.data_row_bytes, scales.data(), geometry.scale_row_bytes}, &want);
            const ConstPageBytes got = view.value().bytes.page(id, h);
            ASSERT_EQ(std::memcmp(got.data, data.data(), data.size()), 0) << name;
            ASSERT_EQ(got.data_row_stride, geometry.data_row_bytes);
            if (geometry.scale_bytes() == 0) continue;
            ASSERT_EQ(std::memcmp(got.scales, scales.data(), static_cast<std::size_t>(geometry.scale_bytes())), 0)
                << name;
          }
        }
        const auto* old_bytes = reinterpret_cast<const std::byte*>(before.memory.data());
        const auto* new_bytes = reinterpret_cast<const std::byte*>(pool.memory.data());
        for (std::size_t i = 0; i < written.size(); ++i) {
          if (written[i] != std::byte{0}) continue;
          ASSERT_EQ(new_bytes[i], old_bytes[i]) << name << " byte " << i;
        }
        EXPECT_EQ(met.saturated_elements, want.saturated_elements);
        EXPECT_EQ(met.flushed_blocks, want.flushed_blocks);
      }
    }
  }
}

TEST(ConvertPages, AttendEqualsACacheOfTheSameTokens) {
  const Tensor k_mean = gaussian({1, 1, kHeads, kDim}, 9);
  const Tensor q = gaussian({1, 3, 6, kDim}, 4);
  const std::int64_t length = 3 * kPageSize;
  for (const char* text :
       {"nvfp4,centre=static", "fp8", "k=mxfp4,v=nvfp4@keys,p=bf16", "k=int4_tile16,v=int8,p=bf16"}) {
    Pool pool(DType::bf16, true);
    CacheConfig c;
    c.recipe = recipe(text);
    c.num_pages = 3;
    c.page_size = kPageSize;
    c.q_heads = 6;
    c.kv_heads = kHeads;
    c.head_dim = c.head_dim_v = kDim;
    const bool centred = c.recipe.centre == Centre::fixed;
    if (centred) c.k_mean = k_mean.data;
    PagedCache cache = PagedCache::create(c).value();
    for (const std::int32_t id : kIds) {
      ASSERT_TRUE(cache.append(pool.tokens(0, id), pool.tokens(1, id), nullptr, nullptr, nullptr).ok());
    }
    CacheView view = cache.view();
    AttentionProblem p;
    p.recipe = c.recipe;
    p.max_q = 3;
    p.max_kv = length;
    p.q_heads = 6;
    p.kv_heads = kHeads;
    p.head_dim = p.head_dim_v = kDim;
    p.causal = commit_unit(c.recipe, kPageSize) == 1;  // else the first rows would read 16-bit tokens
    p.page_size = kPageSize;
    AttentionTensors t;
    t.q = q.view();
    t.cache = view;
    std::vector<double> want, want_lse, got, got_lse;
    ASSERT_TRUE(attend_cpu(p, t, want, want_lse).ok());

    t.cache.k = convert_pages(pool.operand(0), c.recipe.k, kIds, centred ? k_mean.data.data() : nullptr).value().bytes;
    t.cache.v = convert_pages(pool.operand(1), c.recipe.v, kIds).value().bytes;
    t.cache.num_pages = kPages;
    t.cache.page_table = kIds.data();
    ASSERT_TRUE(attend_cpu(p, t, got, got_lse).ok());
    EXPECT_EQ(got, want) << text;
    EXPECT_EQ(got_lse, want_lse) << text;
  }
}

TEST(ConvertPages, TheIncompletePageMayStayInSixteenBits) {
  Pool pool(DType::bf16, false);
  CacheConfig c;
  c.recipe = recipe("k=nvfp4,v=nvfp4@keys,p=bf16");
  c.num_pages = 3;
  c.page_size = kPageSize;
  c.q_heads = 6;
  c.kv_heads = kHeads;
  c.head_dim = c.head_dim_v = kDim;
  PagedCache cache = PagedCache::create(c).value();
  const std::int64_t counts[] = {kPageSize, kPageSize, 10};
  for (std::size_t i = 0; i < kIds.size(); ++i) {
    const TensorView k = pool.tokens(0, kIds[i]), v = pool.tokens(1, kIds[i]);
    ASSERT_TRUE(cache.append(k, v, nullptr, nullptr, &counts[i]).ok());
  }
  AttentionProblem p;
  p.recipe = c.recipe;
  p.max_kv = 2 * kPageSize + 10;
  p.q_heads = 6;
  p.kv_heads = kHeads;
  p.head_dim = p.head_dim_v = kDim;
  const Tensor q = gaussian({1, 1, 6, kDim}, 4);
  AttentionTensors t;
  t.q = q.view();
  t.cache = cache.view();
  std::vector<double> want, want_lse, got, got_lse;
  ASSERT_TRUE(attend_cpu(p, t, want, want_lse).ok());

  const std::vector<std::int32_t> full(kIds.begin(), kIds.begin() + 2);
  t.cache.k = convert_pages(pool.operand(0), c.recipe.k, full).value().bytes;
  t.cache.v = convert_pages(pool.operand(1), c.recipe.v, full).value().bytes;
  t.cache.num_pages = kPages;
  t.cache.page_table = kIds.data();
  SequenceView s;
  s.packed_end = s.wide_begin = 2 * kPageSize;
  s.wide_k = pool.memory.data() + kIds[2] * 2 * kElements;
  s.wide_v = s.wide_k + kElements;
  t.cache.sequences = &s;
  ASSERT_TRUE(attend_cpu(p, t, got, got_lse).ok());
  EXPECT_EQ(got, want);
  EXPECT_EQ(got_lse, want_lse);
}

TEST(ConvertPages, RefusalsChangeNothing) {
  Pool pool(DType::bf16, false);
  const std::vector<std::uint16_t> before = pool.memory;
  const auto refusal = [&](const char* name, auto&& change, std::vector<std::int32_t> ids = kIds,
                           const float* global = nullptr) {
    MutablePages p = pool.operand(0);
    change(p);
    const Result<MutablePages> made = convert_pages(p, parse_format(name).value(), ids, nullptr, global);
    EXPECT_FALSE(made.ok());
    EXPECT_EQ(pool.memory, before);
    return made.ok() ? std::string() : made.status().message();
  };
  const auto same = [](MutablePages&) {};
  EXPECT_THAT(refusal("bf16", same), HasSubstr("format bf16 is not smaller than 16-bit pages"));
  EXPECT_THAT(refusal("f32", same), HasSubstr("take one of 8 or 4 bits"));
  EXPECT_THAT(refusal("fp8_e4m3_static", same), HasSubstr("pass global [2], calibrated by you"));
  const float bad[] = {1.0F, -1.0F};
  EXPECT_THAT(refusal("fp8_e4m3_static", same, kIds, bad), HasSubstr("global[1] is -1"));
  EXPECT_THAT(refusal("mxfp4", [](auto& p) { p.kind.format = parse_format("int8").value(); }),
              HasSubstr("the pages are 'int8 linear page_size=64 kv_heads=2 head_dim=48'; bf16 or fp16"));
  EXPECT_THAT(refusal("mxfp4", [](auto& p) { p.bytes.data_row_stride += 4; }), HasSubstr("a page must be contiguous"));
  EXPECT_THAT(refusal("mxfp4", same, {0, 5}), HasSubstr("page 5 is out of range; page ids are in 0..4"));
  EXPECT_THAT(refusal("mxfp4", same, {-1}), HasSubstr("page -1 is out of range"));
  EXPECT_THAT(refusal("mxfp4", same, {2, 1, 2}), HasSubstr("page 2 is given twice"));
  EXPECT_THAT(refusal("int8_tile64", [](auto& p) { p.kind.page_size = 32; }),
              HasSubstr("page_size 32 is not supported"));
  // One channel: a code and a 4-byte scale do not fit into two bytes.
  EXPECT_THAT(refusal("int8",
                      [](auto& p) {
                        p.kind.head_dim = 1;
                        p.bytes.data_row_stride = kHeads * 2;
                        p.bytes.data_head_stride = 2;
                      }),
              HasSubstr("has 256 bytes, format int8 takes 640"));
}

TEST(ConvertPages, WithoutIdsThePoolIsOnlyDescribed) {
  Pool pool(DType::f16, false);
  const std::vector<std::uint16_t> before = pool.memory;
  const MutablePages packed = convert_pages(pool.operand(1), parse_format("nvfp4").value(), {}).value();
  EXPECT_EQ(pool.memory, before);
  EXPECT_EQ(pages_tag(packed.kind), "nvfp4 linear page_size=64 kv_heads=2 head_dim=48");
  EXPECT_EQ(packed.data, reinterpret_cast<std::byte*>(pool.memory.data() + kElements));
  EXPECT_EQ(packed.scales - packed.data, kPageSize * kHeads * kDim / 2);
  EXPECT_EQ(packed.bytes.data_page_stride, 2 * kElements * 2);
}

TEST(ConvertPages, ConvertedPagesAreWrittenByLaterTokens) {
  // The incomplete page of a prefill is converted whole; decode goes on in its unused slots.
  Pool pool(DType::bf16, false), later(DType::bf16, true);
  const BlockFormat f = parse_format("nvfp4").value();
  MutablePages pages[2] = {convert_pages(pool.operand(0), f, kIds).value(),
                           convert_pages(pool.operand(1), f, kIds).value()};
  CacheConfig c;
  c.recipe = recipe("kv=nvfp4");
  c.num_pages = kPages;
  c.page_size = kPageSize;
  c.q_heads = c.kv_heads = kHeads;
  c.head_dim = c.head_dim_v = kDim;
  std::vector<std::int64_t> slots(kPageSize, -1);
  slots[3] = 4 * kPageSize + 50;
  ASSERT_TRUE(quantise_to_pages(c, pages[0], pages[1], later.tokens(0, 2), later.tokens(1, 2),
                                std::span<const std::int64_t>(slots), nullptr)
                  .ok());
  std::vector<float> got(kDim), want(kDim);
  for (std::int64_t o = 0; o < 2; ++o) {
    dequantise_tokens(f, kDim, 50, 1, pages[o].bytes.page(4, 1), 1.0F, got.data(), kDim, 1);
    const std::vector<float> x = later.rows(o, 2, 1);
    round_trip_tokens(f, kDim, 1, &x[3 * kDim], kDim, want.data(), kDim, nullptr);
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace mpfa::test
