// Reading pages: nibble order, extreme scale bytes, slot ranges and strides, rows along the keys.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "formats/elements.hpp"
#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

TEST(Nibbles, EarlierElementIsLow) {
  Page page(format("mxfp4_f32"), 32, 1);
  std::vector<float> x = padded({.5F, 6.0F}, 32);
  page.write(0, x);
  EXPECT_EQ(page.data_byte(0), 0x71);
  EXPECT_EQ(page.read(0, 1), x);
  Page integers(format("int4"), 2, 1);
  integers.write(0, {-7.0F, 1.0F});
  EXPECT_EQ(integers.data_byte(0), 0x19);
}

TEST(Nibbles, EveryCodeOfABlockKeepsItsPlace) {
  std::vector<float> x;
  for (std::uint32_t c = 0; c < 32; ++c) x.push_back(formats::E2M1::decode(c % 16));
  for (const char* name : {"mxfp4", "mxfp4_ceil", "mxfp4_f32", "nvfp4"}) {
    Page page(format(name), 32, 1);
    page.write(0, x);
    EXPECT_EQ(page.read(0, 1), x) << name;
  }
}

TEST(Mxfp4Dequantise, EveryScaleByteTimesEveryCodeOnBothPaths) {
  const BlockFormat f = format("mxfp4");
  for (int b = 0; b < 256; ++b) {
    Page page(f, 16, 1);
    for (std::size_t i = 0; i < 8; ++i) page.data[i] = static_cast<std::byte>(2 * i | (2 * i + 1) << 4);
    page.scales[0] = static_cast<std::byte>(b);
    const std::vector<float> straight = page.read(0, 1);
    std::vector<float> strided(16 * 3);
    dequantise_tokens(f, 16, 0, 1, page.bytes(), 1.0F, strided.data(), 1, 3);
    for (std::uint32_t c = 0; c < 16; ++c) {
      const auto exact = static_cast<float>(std::ldexp(static_cast<double>(formats::E2M1::decode(c)), b - 127));
      if (b == 255) {
        EXPECT_TRUE(std::isnan(straight[c]) && std::isnan(strided[c * 3]));
      } else {
        EXPECT_EQ(straight[c], exact) << b << " " << c;
        EXPECT_EQ(strided[c * 3], exact) << b << " " << c;
      }
    }
  }
}

TEST(Fp8Dequantise, All256BytesIncludingSignedZero) {
  for (const char* name : {"fp8_e4m3_static", "fp8_e5m2_static"}) {
    Page page(format(name), 256, 1);
    for (std::size_t i = 0; i < 256; ++i) page.data[i] = static_cast<std::byte>(i);
    const std::vector<float> x = page.read(0, 1);
    EXPECT_TRUE(x[0x80] == 0.0F && std::signbit(x[0x80]));
    Page copy(format(name), 256, 1);
    copy.write(0, x);
    for (std::size_t i = 0; i < 256; ++i) {
      if (std::isfinite(x[i])) {
        EXPECT_EQ(copy.data[i], page.data[i]) << i;
      }
    }
  }
}

class EveryFormat : public testing::TestWithParam<std::string> {};

TEST_P(EveryFormat, AnySlotRangeAndStrideReadsTheSameValues) {
  const BlockFormat f = format(GetParam());
  const std::int64_t tokens = 128;
  for (const std::int64_t d : {64, 40, 13}) {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(tokens * d));
    for (float& v : x) v = normal(gen);
    Page page(f, d, tokens);
    page.write(0, x);
    const std::vector<float> all = page.read(0, tokens);
    for (const auto& [slot, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 1}, {5, 62}, {63, 65}, {31, 2}, {128, 0}}) {
      const std::vector<float> part = page.read(slot, count);
      std::vector<float> across(static_cast<std::size_t>(count * d));
      dequantise_tokens(f, d, slot, count, page.bytes(), 1.0F, across.data(), 1, count);
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t c = 0; c < d; ++c) {
          const float want = all[static_cast<std::size_t>((slot + t) * d + c)];
          ASSERT_EQ(part[static_cast<std::size_t>(t * d + c)], want) << d << " " << slot << " " << t << " " << c;
          ASSERT_EQ(across[static_cast<std::size_t>(c * count + t)], want) << d << " " << slot << " " << t << " " << c;
        }
      }
    }
  }
}

TEST_P(EveryFormat, WritingOneGroupLeavesTheOthersBytesAlone) {
  const BlockFormat f = format(GetParam());
  const std::int64_t unit = f.block_keys, d = 40;
  std::vector<float> x(static_cast<std::size_t>(unit * d), 1.5F), more(x.size(), -3.0F);
  Page page(f, d, 3 * unit);
  page.write(0, x);
  page.write(2 * unit, x);
  const std::vector<float> first = page.read(0, unit), last = page.read(2 * unit, unit);
  page.write(unit, more);
  EXPECT_EQ(page.read(0, unit), first);
  EXPECT_EQ(page.read(2 * unit, unit), last);
  EXPECT_LT(page.read(unit, 1)[0], -2.0F);
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(format_names()), [](const auto& name) {
  std::string text = name.param;
  std::replace(text.begin(), text.end(), '@', '_');
  return text;
});

}  // namespace
}  // namespace mpfa::test
