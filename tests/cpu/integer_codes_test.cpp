// Codes as integers for dot products.
#include "cpu/integer_codes.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/elements.hpp"
#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

formats::WordFormat word_format(const char* name, std::int64_t channels) {
  return formats::word_format(parse_format(name).value(), channels);
}

TEST(IntegerCodes, E4m3BecomesTheNearestWords) {
  on_every_target([] {
    IntegerForm form;
    const formats::WordFormat format = word_format("fp8_e4m3", 256);
    if (!integer_form(format, 256, Integers::signed_words, form)) return;
    std::vector<std::byte> codes;
    for (int i = 0; i < 256; ++i) codes.push_back(static_cast<std::byte>(i));
    std::vector<std::int16_t> words(256);
    EXPECT_EQ(expand_integers(form, codes.data(), 256, 1, 256, words.data()), 1U);
    for (std::uint32_t i = 0; i < 256; ++i) {
      if ((i & 0x7F) == 0x7F) continue;  // NaN
      EXPECT_EQ(words[i], std::nearbyint(formats::E4M3::decode(i) * form.multiplier)) << i;
    }
    EXPECT_EQ(expand_integers(form, codes.data(), 96, 1, 96, words.data()), 0U);
    EXPECT_EQ(words[95], formats::E4M3::decode(95) * form.multiplier);
  });
}

TEST(IntegerCodes, NanCodesAreReported) {
  on_every_target([] {
    IntegerForm form;
    if (!integer_form(word_format("fp8_e4m3", 64), 64, Integers::signed_words, form)) return;
    std::vector<std::byte> codes(3 * 64);
    codes[64 + 40] = std::byte{0xFF};
    std::vector<std::int16_t> rows(3 * 64);
    EXPECT_EQ(expand_integers(form, codes.data(), 64, 3, 64, rows.data()), 0b010U);
  });
}

TEST(IntegerCodes, FormatsThatAreNotWholeAreLeftToFloats) {
  on_every_target([] {
    for (const char* name : {"lloyd4", "fp8_e4m3", "bf16", "int4_asym", "fp8_e5m2"}) {
      IntegerForm form;
      EXPECT_FALSE(integer_form(word_format(name, 64), 64, Integers::unsigned_bytes, form)) << name;
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
