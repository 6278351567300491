// write_slots and convert_pages on device memory: every byte, written or not, is what the host leaves there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mpfa/device_cache.hpp"
#include "tests/cuda/support/slot_writes.hpp"

namespace mpfa::test {
namespace {

constexpr const char* kFormats[] = {
    "bf16",          "fp16",          "fp8_e4m3",   "fp8_e4m3_static", "int8",         "int8_g32",
    "int8_g64",      "int8_g128",     "int4",       "int4_g32",        "int4_g64",     "int4_g128",
    "mxfp4",         "mxfp4_ocp",     "mxfp4_ceil", "nvfp4",           "nvfp4_4over6", "mxfp4_f32",
    "mxfp4_f32_b16", "mxfp4_f32_b64", "e3m0_f32",   "e3m0_f32_b16",    "e3m0_f32_b64"};

std::string name_of(const testing::TestParamInfo<const char*>& p) {
  return p.param;
}

class Formats : public testing::TestWithParam<const char*> {};

TEST_P(Formats, SlotsGetTheBytesOfTheHost) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(write_both({.k = GetParam(), .v = GetParam(), .dtype = dtype}), "") << static_cast<int>(dtype);
  }
}
TEST_P(Formats, WithoutMeansAndScales) {
  EXPECT_EQ(write_both({.k = GetParam(), .v = "fp8_e4m3", .dtype = DType::bf16, .means = false, .globals = false}, 4),
            "");
}
TEST_P(Formats, OddHeadDimsAndStrides) {
  for (const std::int64_t d : {16, 80, 96, 512}) {
    EXPECT_EQ(
        write_both(
            {.k = "nvfp4", .v = GetParam(), .tokens = 77, .heads = 3, .d = d, .page = 7, .strided = true, .q_heads = 3},
            5),
        "")
        << d;
  }
}
/// 16-bit formats keep NaN, and which one comes out of a turn is the machine's choice.
TEST_P(Formats, KeysTurnInFloat32) {
  const bool wide = std::string(GetParam()).ends_with("16");
  EXPECT_EQ(write_both({.k = GetParam(), .v = "nvfp4", .dtype = DType::bf16, .finite = wide, .rope_half = 64}, 6), "");
}

INSTANTIATE_TEST_SUITE_P(, Formats, testing::ValuesIn(kFormats), name_of);

TEST(Latent, LongRowsOfBlocks) {
  for (const char* f : {"mxfp4", "nvfp4", "nvfp4_4over6", "int8_g64", "int4_g32"}) {
    EXPECT_EQ(write_both({.k = f, .v = f, .tokens = 40, .heads = 1, .d = 576, .dtype = DType::bf16, .q_heads = 1}, 7),
              "");
  }
}

/// Sums of squares that differ by less than their rounding, also under heads with scales, decide as they do on the
/// host.
TEST(FourOverSix, NearTies) {
  for (const bool globals : {false, true}) {
    for (const bool means : {false, true}) {
      WriteCase c{.k = "nvfp4_4over6", .v = "nvfp4_4over6", .tokens = 3000, .pages = 400, .means = means};
      c.globals = globals, c.ties = true;
      EXPECT_EQ(write_both(c, 12), "") << globals << means;
    }
  }
}

/// Blocks go over more than one group of tokens, and the last one is short.
TEST(Long, EveryTokenOfTiles) {
  for (const std::int64_t half : {0, 32}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      WriteCase c{.k = "nvfp4", .v = "int8", .tokens = 20011, .heads = 3, .d = 64, .pages = 1300, .dtype = dtype};
      c.rope_half = half, c.q_out = c.q_dtype;
      EXPECT_EQ(write_both(c, 10), "") << half;
    }
  }
}

TEST(Rope, StylesTablesAndPlaces) {
  for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
    for (const DType table : {DType::f32, DType::bf16, DType::f16}) {
      for (const auto& [half, begin] : {std::pair{64, 0}, {32, 64}, {16, 16}, {24, 8}, {5, 3}, {1, 127 - 1}}) {
        WriteCase c{.k = "mxfp4", .v = "fp8_e4m3", .tokens = 60, .dtype = DType::bf16};
        c.rope_half = half, c.rope_begin = begin, c.style = style, c.table = table;
        c.q_out = table;  // also narrow results
        EXPECT_EQ(write_both(c, 8), "") << static_cast<int>(style) << " " << half << " from " << begin;
      }
    }
  }
}

TEST(Rope, QueriesInPlaceWithPositionsOfTheirOwn) {
  for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
    for (const std::int64_t half : {32, 31}) {
      WriteCase c{.k = "nvfp4", .v = "nvfp4", .tokens = 9, .heads = 1, .d = 64, .dtype = DType::f16};
      c.rope_half = half, c.style = style, c.q_dtype = DType::f16, c.q_out = DType::f16, c.q_heads = 1;
      EXPECT_EQ(write_both(c, 9), "");
    }
  }
}

class Converted : public testing::TestWithParam<const char*> {};

TEST_P(Converted, PagesGetTheBytesOfTheHost) {
  constexpr std::int64_t kPages = 5, kPage = 12, kHeads = 3;
  const BlockFormat format = parse_format(GetParam()).value();
  for (const std::int64_t d : {96, 128}) {
    for (const PageOrder order : {PageOrder::nhd, PageOrder::hnd}) {
      for (const DType dtype : {DType::bf16, DType::f16}) {
        const PagesKind kind{parse_format(dtype == DType::bf16 ? "bf16" : "fp16").value(),
                             PagesLayout::linear,
                             kPages,
                             kPage,
                             kHeads,
                             d};
        std::vector<std::byte> host = narrow(hard_values(kPages * kPage * kHeads * d, 11), dtype);
        const auto size = static_cast<std::int64_t>(host.size());
        const PageStrides strides = dense_strides(order, kPage, kHeads, d * 2);
        const std::vector<std::int32_t> ids{3, 0, 4};
        const std::vector<float> mean = gaussian({1, 1, kHeads, d}, 12).data, global{0.5F, 1.7F, 0.03F};
        Memory memory;
        PageConversion c;
        std::byte* const pool = memory.copy(host);
        c.pages = make_pages(kind, MutablePagePart{pool, size, 0, strides}, MutablePagePart{}).value();
        c.format = format, c.ids = memory.copy(ids), c.n = 3, c.mean = memory.copy(mean);
        c.global = memory.copy(global), c.counters = memory.copy(std::vector<unsigned long long>(3));
        const Result<MutablePages> packed = convert_pages(c, Device::sm90);
        ASSERT_TRUE(packed.ok()) << packed.status().message();
        QuantiseCounters met;
        const MutablePages pages =
            make_pages(kind, MutablePagePart{host.data(), size, 0, strides}, MutablePagePart{}).value();
        const Result<MutablePages> expected = convert_pages(pages, format, ids, mean.data(), global.data(), &met);
        ASSERT_TRUE(expected.ok()) << expected.status().message();
        EXPECT_EQ(to_host(pool, host.size()), host) << d;
        EXPECT_EQ(packed.value().scales == nullptr ? 0 : packed.value().scales - pool,
                  expected.value().scales == nullptr ? 0 : expected.value().scales - host.data());
        const std::vector<unsigned long long> counters = to_host(c.counters, 3);
        EXPECT_EQ(counters[0], static_cast<unsigned long long>(met.nonfinite_blocks));
        EXPECT_EQ(counters[1], static_cast<unsigned long long>(met.saturated_elements));
        EXPECT_EQ(counters[2], static_cast<unsigned long long>(met.flushed_blocks));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Converted, testing::ValuesIn(kFormats + 2, std::end(kFormats)), name_of);

TEST(Refused, WithAReason) {
  EXPECT_THAT(write_both({.k = "lloyd4", .v = "mxfp4"}), testing::HasSubstr("k is lloyd4; the GPU writes"));
  EXPECT_THAT(write_both({.k = "fp8_e4m3", .v = "fp8_e4m3", .heads = 1, .d = 576, .q_heads = 1}),
              testing::HasSubstr("up to 512 channels"));
  EXPECT_THAT(write_both({.k = "mxfp4", .v = "mxfp4", .d = 24}), testing::HasSubstr("pad to 32"));
  WriteCase c;
  c.rope_half = 100;
  EXPECT_THAT(write_both(c), testing::HasSubstr("begin + 2 * half"));
}

}  // namespace
}  // namespace mpfa::test
