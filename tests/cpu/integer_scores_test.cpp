// Scores by dot products of integers against sums in double.
#include "cpu/integer_scores.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/panel_ops.hpp"
#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

constexpr std::int64_t kKeys = 21, kChannels = 128;

/// Rows of random codes of a format, their integers and factors, and what they stand for.
struct Keys {
  formats::WordFormat words;
  IntegerForm form;
  std::vector<std::byte> integers;
  std::vector<float> factors, values;
  bool taken;

  Keys(const char* name, Integers type) : words(formats::word_format(parse_format(name).value(), kChannels)) {
    const std::int64_t row = words.per_word == 8 ? kChannels / 2 : kChannels, stride = row + 32;
    std::vector<std::byte> codes(static_cast<std::size_t>(kKeys * stride));
    std::mt19937 rng(1);
    for (std::byte& x : codes) x = static_cast<std::byte>(rng());
    factors = normal(static_cast<std::size_t>(kKeys * kChannels / words.block), 2);
    integers.resize(static_cast<std::size_t>(kKeys * kChannels * 2));
    taken = integer_form(words, kChannels, type, form);
    if (taken) {
      EXPECT_EQ(expand_integers(form, codes.data(), stride, kKeys, kChannels, integers.data()), 0U);
    }
    for (std::int64_t j = 0; j < kKeys; ++j) {
      for (std::int64_t c = 0; c < kChannels; ++c) {
        const auto byte = static_cast<std::uint8_t>(codes[j * stride + (words.per_word == 8 ? c / 2 : c)]);
        const float element = words.per_word == 8 ? words.table->at(byte >> 4 * (c % 2) & 15)
                                                  : static_cast<float>(static_cast<std::int8_t>(byte));
        values.push_back(element * factors[(j * kChannels + c) / words.block]);
      }
    }
  }
};

/// Scores of rows q [rows, kChannels], and of special rows.
struct Scores {
  std::vector<float> x;
  std::uint32_t special;
};
Scores scores(const Keys& k, int levels, std::int64_t width, std::int64_t rows, const std::vector<float>& q) {
  const IntegerShape shape{kChannels, k.words.block, width, k.form.type};
  std::vector<std::int32_t> packed(static_cast<std::size_t>(shape.size()));
  Scores s{std::vector<float>(static_cast<std::size_t>(kKeys * width), NAN), 0};
  s.special = pack_integer_panel(k.form, shape, levels, rows, q.data(), packed.data());
  integer_scores(shape, kKeys, k.integers.data(), k.factors.data(), packed.data(), s.x.data());
  return s;
}

/// Queries that are whole multiples of what 1 / levels of the largest of a block is.
std::vector<float> whole_queries(std::int64_t rows, std::int64_t block, int levels) {
  const auto most = static_cast<float>(levels);
  std::vector<float> q = normal(static_cast<std::size_t>(rows * kChannels), 3);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const float unit = std::exp2(static_cast<float>(i / block % 7) * 5 - 13);
    q[i] = (i % block == 0 ? -most : std::round(q[i] * most / 5)) * unit;
  }
  return q;
}

void expect_products(const Keys& k, const std::vector<float>& q, const Scores& s, std::int64_t width, double error) {
  for (std::int64_t j = 0; j < kKeys; ++j) {
    for (std::size_t r = 0; r < q.size() / kChannels; ++r) {
      double want = 0, size = 0, largest = 0;
      for (std::int64_t c = 0; c < kChannels; ++c) {
        const double product = static_cast<double>(q[r * kChannels + c]) * k.values[j * kChannels + c];
        want += product, size += std::abs(product);
        largest = std::max(largest, std::abs(static_cast<double>(q[r * kChannels + c])));
      }
      for (std::int64_t c = 0; c < kChannels; ++c) size += largest * std::abs(k.values[j * kChannels + c]) * error;
      ASSERT_NEAR(s.x[j * width + r], want, size * 1e-6) << "key " << j << " row " << r;
    }
  }
}

TEST(IntegerScores, BytesAreExact) {
  on_every_target([] {
    for (const auto& [name, levels] : {std::pair{"int8", 127}, {"int8_g32", 127}, {"nvfp4", 24}, {"mxfp4", 24}}) {
      const Keys k(name, Integers::unsigned_bytes);
      if (!k.taken) continue;
      for (const std::int64_t rows : {3, 16, 17, 32}) {
        const std::int64_t width = rows <= kPanel / 2 ? kPanel / 2 : kPanel;
        const std::vector<float> q = whole_queries(rows, k.words.block, levels);
        SCOPED_TRACE(name);
        const Scores s = scores(k, levels, width, rows, q);
        EXPECT_EQ(s.special, 0U);
        expect_products(k, q, s, width, 0.0);
      }
    }
  });
}

TEST(IntegerScores, WordsKeepSixteenBitsOfTheLargest) {
  on_every_target([] {
    for (const char* name : {"int8", "int4_g64", "nvfp4", "mxfp4", "e3m0_f32"}) {
      const Keys k(name, Integers::signed_words);
      if (!k.taken) continue;
      SCOPED_TRACE(name);
      const std::vector<float> q = normal(20 * kChannels, 5);
      expect_products(k, q, scores(k, 32767, kPanel, 20, q), kPanel, 0x1p-16 * 1e6);
    }
  });
}

TEST(IntegerScores, RowsThatAreNotFiniteOrOutOfProportionAreMarkedAlone) {
  on_every_target([] {
    const Keys k("int8", Integers::unsigned_bytes);
    if (!k.taken) return;
    std::vector<float> q = whole_queries(6, kChannels, 127);
    const Scores before = scores(k, 127, kPanel, 6, q);
    q[1 * kChannels + 7] = std::numeric_limits<float>::quiet_NaN();
    q[2 * kChannels + 8] = -std::numeric_limits<float>::infinity();
    q[4 * kChannels + 9] = 1e35F;
    std::fill_n(q.begin() + 5 * kChannels, kChannels, 0.0F);
    const Scores after = scores(k, 127, kPanel, 6, q);
    EXPECT_EQ(after.special, 0b010110U);
    for (std::int64_t i = 0; i < kKeys * kPanel; ++i) {
      const bool kept = i % kPanel == 0 || i % kPanel == 3;
      ASSERT_EQ(after.x[i], kept ? before.x[i] : 0.0F) << i;
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
