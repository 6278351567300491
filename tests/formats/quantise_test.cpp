// Blocks that broke quantisers elsewhere: zero, tiny, huge, not finite, cut off; each with the value that must hold.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/elements.hpp"
#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Nvfp4Quantize, ZeroBlockNextToHugeBlockStaysZero) {
  std::vector<float> x(32, 0.0F);
  x[20] = 1e4F;
  for (const char* name : {"nvfp4", "nvfp4_4over6"}) {
    Page page(format(name), 32, 1);
    page.write(0, x);
    EXPECT_EQ(page.scale_byte(0), 0);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(page.data_byte(static_cast<std::size_t>(i)), 0);
    const std::vector<float> y = page.read(0, 1);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_TRUE(y[i] == 0.0F && !std::signbit(y[i]));
    EXPECT_EQ(page.counters.flushed_blocks, 0);
  }
}

TEST(Nvfp4Quantize, ScaleStopsAt448InsteadOfBecomingNan) {
  Page page(format("nvfp4"), 16, 1);
  page.write(0, padded({3000.0F, 1.0F}, 16));
  EXPECT_EQ(page.scale_byte(0), 0x7E);
  EXPECT_EQ(page.read(0, 1)[0], 2688.0F);
  EXPECT_EQ(page.counters.saturated_elements, 0);  // 3000 / 448 rounds to 6
  page.write(0, padded({1e5F}, 16));
  EXPECT_EQ(page.counters.saturated_elements, 1);
}

TEST(Nvfp4Quantize, ScaleThatUnderflowsFlushesTheBlockAndCountsIt) {
  for (const float amax : {1e-6F, 1e-3F, 1e-38F}) {
    Page page(format("nvfp4"), 16, 1);
    page.write(0, std::vector<float>(16, -amax));
    EXPECT_EQ(page.scale_byte(0), 0);
    EXPECT_EQ(page.counters.flushed_blocks, 1);
    for (const float v : page.read(0, 1)) EXPECT_TRUE(v == 0.0F && !std::signbit(v));
  }
}

TEST(Nvfp4Quantize, GlobalScaleMultipliesTheBlockScale) {
  const std::vector<float> y = round_trip("nvfp4", padded({6e-6F, 3e-6F, -1e-6F}, 16), 1e-6F);
  EXPECT_NEAR(y[0], 6e-6F, 1e-12F);
  EXPECT_NEAR(y[1], 3e-6F, 1e-12F);
  EXPECT_NEAR(y[2], -1e-6F, 1e-12F);
}

TEST(Nvfp4Quantize, FourOverSixTakesFourOnlyWhenItIsStrictlyBetter) {
  EXPECT_EQ(round_trip("nvfp4_4over6", padded({4.0F, 3.0F}, 16))[1], 3.0F);  // scale 1 holds 4 and 3, scale .6875 not
  Page six(format("nvfp4_4over6"), 16, 1);
  six.write(0, padded({6.0F}, 16));  // exact either way
  EXPECT_EQ(formats::E4M3::decode(static_cast<std::uint32_t>(six.scale_byte(0))), 1.0F);
}

TEST(TinyAmax, QuantiseAndDequantiseStayFinite) {
  for (const float amax : {1e-36F, 1e-37F, 6.3e-38F, 1e-40F, 1e-45F}) {
    for (const std::string& name : format_names()) {
      for (const float v : round_trip(name, std::vector<float>(64, amax))) {
        EXPECT_TRUE(std::isfinite(v) && std::fabs(v) <= 2 * amax) << name << " " << amax;
      }
    }
    if (amax > 1e-37F) {
      EXPECT_NEAR(round_trip("fp8_e4m3", {amax, amax / 2})[1] / amax, .5F, .04F) << amax;
    }
  }
}

TEST(HugeInput, NeverReadsBackAsInfinity) {
  const float largest = std::numeric_limits<float>::max();
  for (const std::string& name : format_names()) {
    for (const float v : {largest, -largest, 1e38F, 2.9e38F}) {
      for (const float y : round_trip(name, padded({v, v / 2, v}, 64))) EXPECT_TRUE(std::isfinite(y)) << name;
    }
  }
}

TEST(ZeroToken, IsPositiveZeroInEveryFormatAndLeavesNeighboursAlone) {
  for (const std::string& name : format_names()) {
    const BlockFormat f = format(name);
    if (f.block_keys != 1) continue;
    Page page(f, 64, 3);
    std::vector<float> x(3 * 64, 0.0F);
    for (std::size_t i = 0; i < 64; ++i) x[i] = x[128 + i] = static_cast<float>(i) - 31.5F;
    page.write(0, x);
    for (const float v : page.read(1, 1)) EXPECT_TRUE(v == 0.0F && !std::signbit(v)) << name;
    const std::vector<float> first = page.read(0, 1);
    EXPECT_EQ(first, page.read(2, 1)) << name;
    EXPECT_GT(first[63], 20.0F) << name;
  }
}

TEST(ZeroBlock, StoresTheSentinelWhereTheFormatHasOne) {
  for (const char* name : {"mxfp4_f32", "e3m0_f32_b16"}) {
    Page page(format(name), 64, 1);
    page.write(0, std::vector<float>(64, 0.0F));
    EXPECT_EQ(page.scale_f32(0), -1.0F);
  }
  Page page(format("fp8_e4m3"), 64, 1);
  page.write(0, std::vector<float>(64, 0.0F));
  EXPECT_EQ(page.scale_f32(0), 0.0F);
}

TEST(Nonfinite, MarksItsOwnBlockAndRaisesTheCounter) {
  for (const std::string& name : format_names()) {
    const BlockFormat f = format(name);
    if (f.scale == ScaleType::none || f.axis == PackAxis::keys || f.block_keys != 1 || f.block_channels == 0) continue;
    for (const float bad : {std::nanf(""), kInf, -kInf}) {
      std::vector<float> x(256, 1.0F);
      Page clean(f, 256, 1), page(f, 256, 1);
      clean.write(0, x);
      x[130] = bad;
      page.write(0, x);
      EXPECT_EQ(page.counters.nonfinite_blocks, 1);
      const std::vector<float> y = page.read(0, 1), want = clean.read(0, 1);
      for (std::size_t i = 0; i < 256; ++i) {
        const bool same_block =
            i / static_cast<std::size_t>(f.block_channels) == 130U / static_cast<std::size_t>(f.block_channels);
        EXPECT_TRUE(same_block ? std::isnan(y[i]) : y[i] == want[i]) << name << " " << i;
      }
    }
  }
}

TEST(Nonfinite, FormatsWithoutAScalePassItThroughOrSaturate) {
  for (const char* name : {"f32", "bf16", "fp16"}) {
    const std::vector<float> y = round_trip(name, {1.0F, std::nanf(""), -kInf, 2.0F});
    EXPECT_TRUE(y[0] == 1.0F && std::isnan(y[1]) && y[2] == -kInf && y[3] == 2.0F) << name;
  }
  Page page(format("fp8_e4m3_static"), 4, 1);
  page.write(0, {std::nanf(""), kInf, 1e9F, 1.0F}, 2.0F);
  EXPECT_EQ(page.data_byte(0), 0x7F);
  EXPECT_EQ(page.data_byte(1), 0x7E);
  EXPECT_EQ(page.read(0, 1, 2.0F)[3], 1.0F);
  EXPECT_EQ(page.counters.nonfinite_blocks, 1);
  EXPECT_EQ(page.counters.saturated_elements, 1);  // the finite one
}

TEST(MxScale, LargestFloatBelowTwoDoesNotRoundUpToTwo) {
  Page page(format("mxfp4_ocp"), 32, 1);
  page.write(0, padded({std::nextafter(2.0F, 0.0F)}, 32));
  EXPECT_EQ(page.scale_byte(0), 125);
}

TEST(MxScale, EachRuleOnABlockWithMaximum7) {
  EXPECT_EQ(round_trip("mxfp4_ocp", padded({7.0F}, 32))[0], 6.0F);
  EXPECT_EQ(round_trip("mxfp4_ceil", padded({7.0F}, 32))[0], 8.0F);
  EXPECT_EQ(round_trip("mxfp4", padded({7.0F}, 32))[0], 6.0F);
  Page page(format("mxfp4_ocp"), 32, 1);
  page.write(0, padded({7.0F}, 32));
  EXPECT_EQ(page.counters.saturated_elements, 1);
}

TEST(MxScale, CodesAreMadeWithTheStoredScale) {
  const std::vector<float> y = round_trip("mxfp4_ceil", padded({5.0F, 1.0F, .3F}, 32));
  EXPECT_EQ(y[0], 4.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], .5F);
}

TEST(Fp8, OneScaleForSmallAndLargeChannelsSaturatesNothing) {
  std::vector<float> x(64, .1F);
  for (std::size_t i = 48; i < 64; ++i) x[i] = 1.0F;
  Page page(format("fp8_e4m3"), 64, 1);
  page.write(0, x);
  EXPECT_GE(page.scale_f32(0), 1.0F / 448.0F);
  EXPECT_EQ(page.counters.saturated_elements, 0);
}

TEST(Int8Quantize, UsesItsOwnRangeAndNeverMinus128) {
  Page page(format("int8"), 2, 1);
  page.write(0, {200.0F, -200.0F});
  EXPECT_EQ(page.scale_f32(0), 200.0F / 127.0F);
  EXPECT_EQ(page.data_byte(0), 0x7F);
  EXPECT_EQ(page.data_byte(1), 0x81);
}

TEST(Int4Asym, ConstantTokenReadsBackAsItsMinimum) {
  Page page(format("int4_asym"), 8, 1);
  page.write(0, std::vector<float>(8, 5.25F));
  EXPECT_EQ(page.read(0, 1), std::vector<float>(8, 5.25F));
  EXPECT_EQ(page.counters.flushed_blocks, 0);
}

TEST(WideFormats, AreNotConfusedWithEachOther) {
  Page bf16(format("bf16"), 1, 1), fp16(format("fp16"), 1, 1);
  bf16.write(0, {1.0F});
  fp16.write(0, {1.0F});
  EXPECT_EQ(bf16.data_byte(1) << 8 | bf16.data_byte(0), 0x3F80);
  EXPECT_EQ(fp16.data_byte(1) << 8 | fp16.data_byte(0), 0x3C00);
}

}  // namespace
}  // namespace mpfa::test
