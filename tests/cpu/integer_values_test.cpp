// P V by dot products of integers: weights have 15 bits relative to the largest of a row and block.
#include "cpu/integer_values.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/panel_ops.hpp"
#include "formats/elements.hpp"
#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

constexpr std::int64_t kChannels = 64;

struct Problem {
  formats::WordFormat words;
  IntegerForm form;
  IntegerKeys keys;
  std::int64_t width;
  std::vector<std::int16_t> pairs;
  std::vector<float> factors, p, values;  // values [kKeyTile, kChannels] without factors
  bool taken;

  Problem(const char* name, IntegerKeys range, std::int64_t panel)
      : words(formats::word_format(parse_format(name).value(), kChannels)), keys(range), width(panel) {
    taken = integer_form(words, kChannels, Integers::signed_words, form);
    if (!taken) return;
    const std::int64_t row = words.per_word == 8 ? kChannels / 2 : kChannels;
    std::vector<std::byte> codes(static_cast<std::size_t>(kKeyTile * row));
    std::mt19937 rng(1);
    for (std::byte& x : codes) x = static_cast<std::byte>(rng() & 0xBF);  // no NaN in e4m3, most values small
    std::vector<std::int16_t> rows(static_cast<std::size_t>(kKeyTile * kChannels));
    EXPECT_EQ(expand_integers(form, codes.data(), row, kKeyTile, kChannels, rows.data()), 0U);
    pairs.resize(rows.size());
    pair_keys(keys, kChannels, rows.data(), pairs.data());
    for (std::int64_t i = 0; i < kKeyTile * kChannels; ++i) {
      const auto byte = static_cast<std::uint8_t>(codes[words.per_word == 8 ? i / 2 : i]);
      values.push_back(words.per_word == 8                     ? words.table->at(byte >> 4 * (i % 2) & 15)
                       : words.code == formats::WordCode::e4m3 ? formats::E4M3::decode(byte)
                                                               : static_cast<float>(static_cast<std::int8_t>(byte)));
    }
    factors = normal(static_cast<std::size_t>(kKeyTile * blocks()), 2);
    for (float& x : factors) x = std::exp2(x * 4);
    p = normal(static_cast<std::size_t>(kKeyTile * width), 4);
    for (float& x : p) x = std::exp2(-3.0F * std::abs(x));
  }
  [[nodiscard]] std::int64_t blocks() const { return kChannels / words.block; }
  [[nodiscard]] double weight(std::int64_t r, std::int64_t j, std::int64_t c) const {
    return static_cast<double>(p[j * width + r]) * factors[j * blocks() + c / words.block];
  }
  /// [kChannels, width], with 0.5 before and a factor of 3 for it.
  [[nodiscard]] std::vector<float> sums() const {
    std::vector<float> o(static_cast<std::size_t>(kChannels * width), 0.5F), units(2 * blocks() * width);
    const std::vector<float> keep(static_cast<std::size_t>(width), 3.0F);
    std::vector<std::uint32_t> weights(static_cast<std::size_t>(kKeyPairs * width));
    integer_units(keys, width, p.data(), factors.data(), blocks(), form, units.data());
    for (std::int64_t b = 0; b < blocks(); ++b) {
      const float* unit = units.data() + 2 * b * width;
      integer_weights(keys, width, p.data(), factors.data() + b, blocks(), unit, weights.data());
      integer_values(keys, words.block, width, pairs.data() + 2 * b * words.block, kChannels, weights.data(), unit,
                     keep.data(), o.data() + b * words.block * width);
    }
    return o;
  }
  /// Every sum is within half a step of each weight and element, but for the error of float sums.
  void check() const {
    const std::vector<float> got = sums();
    for (std::int64_t c = 0; c < kChannels; ++c) {
      for (std::int64_t r = 0; r < width; ++r) {
        const double of_element = words.code == formats::WordCode::e4m3 ? 0x1p-7 : 0.0;  // rounding to 16 bits
        double want = 1.5, top = 0, all = 0, elements = 0, size = 1.5;
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          want += weight(r, j, c) * values[j * kChannels + c];
          size += std::abs(weight(r, j, c) * values[j * kChannels + c]);
          top = std::max(top, weight(r, j, c));
          all += weight(r, j, c);
          elements += std::abs(values[j * kChannels + c]) + of_element;
        }
        const double step = 0x1p-15 * (of_element != 0.0 ? std::max(top, all / 2) : top);
        ASSERT_NEAR(got[c * width + r], want, step * elements + of_element * all + size * 1e-6) << c << " row " << r;
      }
    }
  }
};

/// Calls fn for every format that this machine takes, ranges of keys and widths, on every instruction set.
template <class Fn>
void for_all(Fn fn) {
  on_every_target([&] {
    for (const char* name : {"int8", "int8_g32", "int4_g64", "mxfp4", "nvfp4", "fp8_e4m3", "mxfp8_e4m3"}) {
      for (const IntegerKeys keys : {IntegerKeys{0, kKeyTile}, {0, 1}, {7, 8}, {3, 50}, {62, 64}}) {
        for (const std::int64_t width : {kPanel / 2, kPanel}) {
          SCOPED_TRACE(std::string(name) + " from " + std::to_string(keys.begin));
          Problem x(name, keys, width);
          if (x.taken) fn(x);
        }
      }
    }
  });
}

TEST(IntegerValues, SumsAreWithinAStepOfEveryWeight) {
  for_all([](Problem& x) {
    x.check();
    for (std::size_t i = 0; i < x.factors.size(); ++i) x.factors[i] *= i % x.blocks() == 0 ? 0x1p40F : 0x1p-40F;
    x.check();
  });
}

TEST(IntegerValues, SumsOfTheLargestDoNotOverflow) {
  for_all([](Problem& x) {
    std::fill(x.p.begin(), x.p.end(), 1.0F);
    for (const float factor : {1.0F, std::nextafter(1.0F, 0.0F), 1.99999F, 0x1.fffdp89F, 0x1p-89F}) {
      std::fill(x.factors.begin(), x.factors.end(), factor);
      const float largest = x.form.most / x.form.multiplier - (x.words.code == formats::WordCode::int8 ? 1.0F : 0.0F);
      std::fill(x.values.begin(), x.values.end(), largest);
      std::fill(x.pairs.begin(), x.pairs.end(), static_cast<std::int16_t>(largest * x.form.multiplier));
      x.check();
    }
  });
}

TEST(IntegerValues, ARowDependsOnItsOwnWeightsAlone) {
  for_all([](Problem& x) {
    const std::vector<float> before = x.sums();
    for (std::int64_t j = 0; j < kKeyTile; ++j) {
      x.p[j * x.width + 1] = std::numeric_limits<float>::quiet_NaN();
      x.p[j * x.width + 2] = 0.0F;
      x.p[j * x.width + 3] *= 0x1p-60F;
    }
    const std::vector<float> after = x.sums();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::size_t r = i % static_cast<std::size_t>(x.width);
      if (r == 1) {
        ASSERT_TRUE(std::isnan(after[i]));
      } else if (r == 2) {
        ASSERT_EQ(after[i], 1.5F);
      } else if (r != 3) {
        ASSERT_EQ(after[i], before[i]);
      }
    }
    for (std::int64_t j = 0; j < kKeyTile; ++j) x.p[j * x.width + 1] = 1.0F;
    x.check();
  });
}

TEST(IntegerValues, FoldedBlocksStayExactWithinSixBinades) {
  on_every_target([] {
    if (!Problem("nvfp4", {0, kKeyTile}, kPanel).taken) return;
    constexpr std::int64_t kBlock = 16, kBlocks = kChannels / kBlock;
    const float limit = fold_limit(12.0F);
    std::vector<std::int16_t> words(kKeyTile * kChannels);
    std::vector<float> factors(kKeyTile * kBlocks);
    std::mt19937 rng(1);
    for (std::int16_t& x : words) x = static_cast<std::int16_t>(static_cast<int>(rng() % 25) - 12);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const float size = i % kBlocks == 1 ? 0x1p-20F : std::exp2(-static_cast<float>(rng() % 6));
      const std::size_t key = i / kBlocks;
      const float of_key = std::exp2(static_cast<float>(key) - 30);
      factors[i] = key == 9 ? 0.0F : static_cast<float>(8 + rng() % 8) / 8 * size * of_key;
    }
    const auto before = words;
    const auto factors_before = factors;
    fold_blocks({3, 60}, kChannels, limit, words.data(), factors.data());
    for (std::int64_t j = 3; j < 60; ++j) {
      for (std::int64_t c = 0; c < kChannels; ++c) {
        const float want = before[j * kChannels + c] * factors_before[j * kBlocks + c / kBlock];
        const float got = words[j * kChannels + c] * factors[j];
        if (c / kBlock == 1) {
          ASSERT_NEAR(got, want, factors[j] / 2);
        } else {
          ASSERT_EQ(got, want) << "key " << j << " channel " << c;
        }
        ASSERT_LE(std::abs(words[j * kChannels + c]), 12.0F * limit);
      }
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
