// Names, sizes and limits of the formats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

using testing::HasSubstr;

TEST(Formats, NamesParseToDistinctFormatsAndBack) {
  std::set<std::string> descriptions;
  for (const std::string& name : format_names()) {
    const BlockFormat f = format(name);
    EXPECT_EQ(format_name(f), name);
    descriptions.insert(format_description(f));
  }
  EXPECT_EQ(descriptions.size(), format_names().size());
  EXPECT_EQ(format_name(BlockFormat{}), "bf16");
}

TEST(Formats, UnknownNamesListTheAllowedOnes) {
  for (const char* name : {"", "nvfp", "NVFP4", "fp8_e4m3fnuz", "nvfp4 "}) {
    const Result<BlockFormat> f = parse_format(name);
    ASSERT_FALSE(f.ok()) << name;
    EXPECT_EQ(f.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(f.status().message(), HasSubstr("nvfp4_4over6, mxfp4"));
  }
}

TEST(Formats, BytesPerTokenAndHeadAtHeadDim128) {
  for (const auto& [name, bytes] : std::vector<std::pair<const char*, double>>{{"f32", 512},
                                                                               {"bf16", 256},
                                                                               {"fp8_e4m3", 132},
                                                                               {"fp8_e4m3_static", 128},
                                                                               {"mxfp8_e5m2", 132},
                                                                               {"nvfp4", 72},
                                                                               {"mxfp4", 68},
                                                                               {"mxfp4_f32", 80},
                                                                               {"int4_asym", 68},
                                                                               {"lloyd4", 66},
                                                                               {"int8_g64", 132},
                                                                               {"int4_tile16", 65},
                                                                               {"int8_tile64", 128.0625},
                                                                               {"nvfp4@keys", 72},
                                                                               {"mxfp4@keys", 68},
                                                                               {"fp8_e4m3@keys", 136}}) {
    const PageGeometry g = page_geometry(format(name), 128, 64);
    EXPECT_EQ(static_cast<double>(g.data_bytes() + g.scale_bytes()) / 64, bytes) << name;
  }
}

TEST(Formats, RowsAreTokensOrChannels) {
  const PageGeometry tokens = page_geometry(format("nvfp4"), 72, 64),
                     channels = page_geometry(format("nvfp4@keys"), 72, 64);
  EXPECT_EQ(tokens.data_rows, 64);
  EXPECT_EQ(tokens.data_row_bytes, 36);
  EXPECT_EQ(tokens.scale_row_bytes, 5);
  EXPECT_EQ(channels.data_rows, 72);
  EXPECT_EQ(channels.data_row_bytes, 32);
  EXPECT_EQ(channels.scale_row_bytes, 4);
  const PageGeometry tiles = page_geometry(format("int4_tile16"), 72, 64);
  EXPECT_EQ(tiles.scale_rows, 4);
  EXPECT_EQ(tiles.scale_row_bytes, 10);
}

TEST(CheckFormat, SaysWhatIsGivenWhatIsAllowedAndWhatToDo) {
  EXPECT_TRUE(check_format(format("nvfp4"), 46, 1).ok());
  EXPECT_TRUE(check_format(format("nvfp4@keys"), 46, 16).ok());
  EXPECT_THAT(check_format(format("nvfp4"), 0, 16).message(), HasSubstr("head_dim 0 is not supported"));
  EXPECT_THAT(check_format(format("nvfp4"), 5000, 16).message(), HasSubstr("1 to 4096"));
  EXPECT_THAT(check_format(format("int8_tile64"), 64, 16).message(), HasSubstr("multiple of 64"));
  EXPECT_THAT(check_format(format("bf16"), 64, 0).message(), HasSubstr("page_size 0"));
  BlockFormat odd = format("nvfp4");
  odd.block_channels = 24;
  EXPECT_EQ(check_format(odd, 64, 16).code(), StatusCode::invalid_argument);
  EXPECT_EQ(format_name(odd), "custom");
}

TEST(Elements, BitsAndLargestValues) {
  EXPECT_EQ(element_bits(Element::lloyd4), 4);
  EXPECT_EQ(element_bits(Element::e5m2), 8);
  EXPECT_EQ(element_max(Element::e2m1), 6.0F);
  EXPECT_EQ(element_max(Element::e3m0), 16.0F);
  EXPECT_EQ(element_max(Element::e5m2), 57344.0F);
  EXPECT_EQ(element_max(Element::f16), 65504.0F);
}

}  // namespace
}  // namespace mpfa::test
