// Layouts of other software: known positions, inverses, refusals.
#include "mpfa/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "formats/elements.hpp"
#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

using testing::HasSubstr;
constexpr NibbleOrder kOurs = NibbleOrder::interleaved, kSplit = NibbleOrder::split;

std::vector<std::byte> counting(std::size_t n) {
  std::vector<std::byte> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<std::byte>(i % 251);
  return v;
}

TEST(Nibbles, SplitPutsElementJBesideJPlusHalf) {
  for (const std::int64_t block : {16, 32}) {
    std::vector<std::byte> ours(static_cast<std::size_t>(block)), split(ours.size()), back(ours.size());  // two blocks
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ours[i] = static_cast<std::byte>((2 * i) % 16 | (2 * i + 1) % 16 << 4);  // element e has code e % 16
    }
    ASSERT_TRUE(convert_nibbles(kOurs, kSplit, block, 2 * block, ours.data(), split.data()).ok());
    EXPECT_EQ(static_cast<std::int64_t>(split[1]), 1 | (1 + block / 2) % 16 << 4);
    ASSERT_TRUE(convert_nibbles(kSplit, kOurs, block, 2 * block, split.data(), back.data()).ok());
    EXPECT_EQ(back, ours);
    ASSERT_TRUE(convert_nibbles(kSplit, kOurs, block, 2 * block, split.data(), split.data()).ok());
    EXPECT_EQ(split, ours) << "in place";
  }
}

TEST(Nibbles, RefusesWhatIsNotWholeBlocks) {
  std::byte b[64];
  EXPECT_THAT(convert_nibbles(kOurs, kSplit, 32, 48, b, b).message(), HasSubstr("pad to 64"));
  EXPECT_FALSE(convert_nibbles(kOurs, kSplit, 15, 30, b, b).ok());
  EXPECT_FALSE(convert_nibbles(kOurs, kSplit, 32, 32, nullptr, b).ok());
  EXPECT_FALSE(convert_nibbles(kOurs, kSplit, 32, -32, b, b).ok());
  EXPECT_THAT(convert_nibbles(kOurs, kSplit, 32, INT64_MAX, b, b).message(), HasSubstr("out of range"));
}

std::vector<std::byte> convert(ScaleLayout from, ScaleLayout to, std::int64_t rows, std::int64_t blocks,
                               const std::vector<std::byte>& in) {
  std::vector<std::byte> out(static_cast<std::size_t>(scale_layout_bytes(to, rows, blocks).value()), std::byte{0xFF});
  const Status s = convert_scales(from, to, rows, blocks, in.data(), static_cast<std::int64_t>(in.size()), out.data(),
                                  static_cast<std::int64_t>(out.size()));
  EXPECT_TRUE(s.ok()) << s.message();
  return out;
}

TEST(ScaleLayouts, EveryPairRoundTrips) {
  const std::vector<std::byte> linear = counting(256 * 12);
  for (const ScaleLayout a : {ScaleLayout::linear, ScaleLayout::tile_128x4, ScaleLayout::page_swizzle4}) {
    const std::vector<std::byte> x = convert(ScaleLayout::linear, a, 256, 12, linear);
    for (const ScaleLayout b : {ScaleLayout::linear, ScaleLayout::tile_128x4, ScaleLayout::page_swizzle4}) {
      EXPECT_EQ(convert(b, ScaleLayout::linear, 256, 12, convert(a, b, 256, 12, x)), linear);
    }
  }
}

TEST(ScaleLayouts, TileHoldsFourRowGroupsSideBySideAndPadsWithZero) {
  const std::vector<std::byte> in = counting(130 * 5);
  const std::vector<std::byte> out = convert(ScaleLayout::linear, ScaleLayout::tile_128x4, 130, 5, in);
  ASSERT_EQ(out.size(), 256U * 8U);
  EXPECT_EQ(out[33 % 32 * 16 + 1 * 4 + 2], in[33 * 5 + 2]);
  EXPECT_EQ(out[512 + 100 % 32 * 16 + 3 * 4], in[100 * 5 + 4]);  // second tile of the first row of tiles
  EXPECT_EQ(out[2 * 512 + 1 * 16 + 3], in[129 * 5 + 3]);         // second row of tiles
  EXPECT_EQ(out[512 + 1], std::byte{0});                         // block 5 does not exist
}

TEST(ScaleLayouts, PageSwizzleTradesRowsForQuarters) {
  const std::vector<std::byte> in = counting(8 * 16);
  const std::vector<std::byte> out = convert(ScaleLayout::linear, ScaleLayout::page_swizzle4, 8, 16, in);
  EXPECT_EQ(out[5 * 16 + 13], in[5 * 16 + 7]);
  EXPECT_EQ(out[0 * 16 + 3], in[3 * 16 + 0]);
  EXPECT_EQ(std::multiset<std::byte>(out.begin(), out.end()), std::multiset<std::byte>(in.begin(), in.end()));
}

TEST(ScaleLayouts, NothingToMoveTakesNoTime) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  EXPECT_TRUE(convert_scales(ScaleLayout::linear, ScaleLayout::linear, kMost, 0, nullptr, 0, nullptr, 0).ok());
}

TEST(ScaleLayouts, RefuseSizesThatDoNotFit) {
  EXPECT_THAT(scale_layout_bytes(ScaleLayout::page_swizzle4, 6, 8).status().message(), HasSubstr("multiples of 4"));
  EXPECT_FALSE(scale_layout_bytes(ScaleLayout::page_swizzle4, 8, 2).ok());
  EXPECT_FALSE(scale_layout_bytes(ScaleLayout::linear, -1, 2).ok());
  std::byte in[512], out[512];
  EXPECT_THAT(convert_scales(ScaleLayout::linear, ScaleLayout::tile_128x4, 4, 4, in, 16, out, 16).message(),
              HasSubstr("out has 16 bytes, the sizes given need 512"));
  EXPECT_FALSE(convert_scales(ScaleLayout::linear, ScaleLayout::linear, 4, 4, in, 15, out, 16).ok());
  EXPECT_FALSE(convert_scales(ScaleLayout::linear, ScaleLayout::linear, 4, 4, nullptr, 16, out, 16).ok());
}

TEST(LayoutNames, ParseBackAndListTheAllowedOnes) {
  EXPECT_EQ(parse_scale_layout("page_swizzle4").value(), ScaleLayout::page_swizzle4);
  EXPECT_EQ(parse_nibble_order(nibble_order_name(kSplit)).value(), kSplit);
  EXPECT_EQ(scale_layout_name(ScaleLayout::tile_128x4), "tile_128x4");
  EXPECT_THAT(parse_scale_layout("swizzled").status().message(), HasSubstr("linear, tile_128x4, page_swizzle4"));
}

struct GgmlCase {
  const char* format;
  GgmlType type;
  std::int64_t head_dim, row_bytes;
};
class GgmlBlocks : public testing::TestWithParam<GgmlCase> {};

TEST_P(GgmlBlocks, HoldTheSameValuesAndComeBack) {
  const auto [name, type, d, row_bytes] = GetParam();
  Page page(format(name), d, 3), back(format(name), d, 3);
  std::vector<float> x(static_cast<std::size_t>(3 * d));
  std::iota(x.begin(), x.end(), -40.0F);
  page.write(0, x);
  const PageGeometry& g = page.geometry;
  ASSERT_EQ(ggml_row_bytes(type, d).value(), row_bytes);
  std::vector<std::byte> blocks(static_cast<std::size_t>(3 * row_bytes));
  ASSERT_TRUE(to_ggml_blocks(type, 3, d, page.data.data(), g.data_row_bytes, page.scales.data(), g.scale_row_bytes,
                             blocks.data(), 3 * row_bytes)
                  .ok());

  const std::vector<float> want = page.read(0, 3);
  const std::int64_t scales = type == GgmlType::mxfp4 ? 1 : 4, sub = type == GgmlType::mxfp4 ? 32 : 16;
  for (std::int64_t e = 0; e < 3 * d; ++e) {  // the published definition: sub-block, half, place
    const std::byte* block = blocks.data() + e / (scales * sub) * (scales + scales * sub / 2);
    const std::int64_t s = e % (scales * sub) / sub, i = e % sub;
    const auto byte = static_cast<std::uint32_t>(block[scales + s * sub / 2 + i % (sub / 2)]);
    const float code = formats::E2M1::decode(i < sub / 2 ? byte & 15U : byte >> 4);
    const auto scale = static_cast<std::uint32_t>(block[s]);
    EXPECT_EQ(code * (type == GgmlType::mxfp4 ? formats::E8M0::decode(scale) : formats::E4M3::decode(scale)),
              want[static_cast<std::size_t>(e)]);
  }

  ASSERT_TRUE(from_ggml_blocks(type, 3, d, blocks.data(), 3 * row_bytes, back.data.data(), g.data_row_bytes,
                               back.scales.data(), g.scale_row_bytes)
                  .ok());
  EXPECT_EQ(back.data, page.data);
  EXPECT_EQ(back.scales, page.scales);

  page.scales[1] = type == GgmlType::mxfp4 ? std::byte{0xFF} : std::byte{0x7F};
  EXPECT_THAT(to_ggml_blocks(type, 3, d, page.data.data(), g.data_row_bytes, page.scales.data(), g.scale_row_bytes,
                             blocks.data(), 3 * row_bytes)
                  .message(),
              HasSubstr("row 0, scale 1"));
  EXPECT_FALSE(to_ggml_blocks(type, 3, d + 16, page.data.data(), d, page.scales.data(), d, blocks.data(), 0).ok());
  EXPECT_FALSE(
      to_ggml_blocks(type, 3, d, page.data.data(), 1, page.scales.data(), 1, blocks.data(), 3 * row_bytes).ok());
}
INSTANTIATE_TEST_SUITE_P(Types, GgmlBlocks,
                         testing::Values(GgmlCase{"mxfp4", GgmlType::mxfp4, 96, 51},
                                         GgmlCase{"nvfp4", GgmlType::nvfp4, 128, 72}),
                         [](const auto& c) { return std::string(c.param.format); });

}  // namespace
}  // namespace mpfa::test
