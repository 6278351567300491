// Weighted sums by dot products of bytes: weights have 16 bits relative to the largest of a row and block.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/value_ops.hpp"
#include "mpfa/attention.hpp"
#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

/// 64 rows of 4-bit codes with factors of their own choice, and probabilities.
struct Problem {
  std::int64_t d, block, rows;
  const BlockFormat format;
  const formats::WordFormat words;
  std::vector<std::uint8_t> codes;
  std::vector<float> factors, p;

  Problem(const char* name, std::int64_t head_dim, std::int64_t count)
      : d(head_dim),
        rows(count),
        format(parse_format(name).value()),
        words(formats::word_format(format, d)),
        codes(static_cast<std::size_t>(kKeyTile * d / 2)) {
    block = words.block;
    std::mt19937 rng(static_cast<unsigned>(d + count));
    for (std::uint8_t& x : codes) x = static_cast<std::uint8_t>(rng());
    factors = normal(static_cast<std::size_t>(d / block * kKeyTile), 1);
    p = normal(static_cast<std::size_t>(rows * kKeyTile), 2);
    for (float& x : factors) x = std::abs(x);
    for (float& x : p) x = std::exp2(-8.0F * std::abs(x));
  }
  [[nodiscard]] float value(std::int64_t key, std::int64_t c) const {
    return (*words.table)[codes[key * d / 2 + c / 2] >> 4 * (c % 2) & 15];
  }
  [[nodiscard]] double weight(std::int64_t r, std::int64_t key, std::int64_t c) const {
    return static_cast<double>(p[r * kKeyTile + key]) * factors[c / block * kKeyTile + key];
  }
  /// The sums in the order of the channels; empty when they are not finite.
  [[nodiscard]] std::vector<float> sums(bool with_bytes = true) const {
    WordRows v{
        words.code,         reinterpret_cast<const std::byte*>(codes.data()), d / 2, d / 8, factors.data(), block / 8,
        words.table->data()};
    ValueBytes bytes;
    if (with_bytes && value_bytes(v, bytes)) v.bytes = &bytes;
    std::vector<float> weights(static_cast<std::size_t>(8 * kKeyTile * d / 16)), to(static_cast<std::size_t>(rows * d));
    const std::vector<float> from(to.size(), 0.5F);
    if (!add_values(v, kKeyTile, rows, p.data(), weights.data(), from.data(), to.data(), d)) return {};
    std::vector<float> out(to.size());
    for (std::int64_t i = 0; i < rows * d; ++i) out[i] = to[i / d * d + value_index(i % d, value_span(v.code))] - 0.5F;
    return out;
  }
  /// Every sum is within half a step of each of its weights, but for the error of float sums.
  void check(const std::string& what) const {
    const std::vector<float> got = sums();
    ASSERT_FALSE(got.empty()) << what;
    for (std::int64_t i = 0; i < rows * d; ++i) {
      const std::int64_t r = i / d, c = i % d;
      double want = 0, largest = 0, elements = 0, size = 0.5;
      for (std::int64_t j = 0; j < kKeyTile; ++j) {
        want += weight(r, j, c) * value(j, c);
        size += std::abs(weight(r, j, c) * value(j, c));
        largest = std::max(largest, weight(r, j, c));
        elements += std::abs(value(j, c));
      }
      ASSERT_NEAR(got[i], want, largest * 0x1p-16 * elements + size * 1e-6) << what << " row " << r << " channel " << c;
    }
  }
};

constexpr auto kFormats = {"mxfp4", "nvfp4", "int4", "int4_g64", "mxfp4_f32_b16", "e3m0_f32", "lloyd4"};

/// Calls fn for every format, several widths and numbers of rows, on every instruction set of this machine.
template <class Fn>
void for_all(Fn fn) {
  on_every_target([&] {
    for (const char* name : kFormats) {
      for (const std::int64_t d : {64, 128, 192, 256}) {
        if (!value_ops_take(d, formats::word_format(parse_format(name).value(), d).block)) continue;
        for (const std::int64_t rows : {1, 2, 3, 4, 5, 8}) {
          fn(Problem(name, d, rows), std::string(name) + " d " + std::to_string(d) + " rows " + std::to_string(rows));
        }
      }
    }
  });
}

TEST(ValueBytes, SumsAreWithinAStepOfEveryWeight) {
  for_all([](const Problem& x, const std::string& what) { x.check(what); });
}

TEST(ValueBytes, SumsOfManyKeysAreAccurate) {
  for_all([](const Problem& x, const std::string& what) {
    const std::vector<float> got = x.sums();
    ASSERT_FALSE(got.empty()) << what;
    double error = 0, norm = 0;
    for (std::int64_t i = 0; i < x.rows * x.d; ++i) {
      double want = 0;
      for (std::int64_t j = 0; j < kKeyTile; ++j) want += x.weight(i / x.d, j, i % x.d) * x.value(j, i % x.d);
      error += (got[i] - want) * (got[i] - want), norm += want * want;
    }
    EXPECT_LE(error, norm * 1e-8) << what;  // relative L2 of 1e-4
  });
}

TEST(ValueBytes, ABlockOfZerosBesideAHugeOneKeepsItsPrecision) {
  for_all([](Problem x, const std::string& what) {
    for (std::int64_t b = 0; b < x.d / x.block; ++b) {
      const float unit = b % 3 == 0 ? 0.0F : b % 3 == 1 ? 0x1p60F : 0x1p-30F;
      for (std::int64_t j = 0; j < kKeyTile; ++j) x.factors[b * kKeyTile + j] *= unit;
    }
    x.check(what);
  });
}

TEST(ValueBytes, KeysThatDifferByTwoToTheThirty) {
  for_all([](Problem x, const std::string& what) {
    for (std::int64_t i = 0; i < x.rows * kKeyTile; ++i) x.p[i] = i % 7 == 3 ? 1.0F : 0x1p-30F;
    x.check(what);
    // A key that weighs almost nothing counts where its values are as much larger.
    for (std::int64_t i = 0; i < x.d / x.block * kKeyTile; ++i) {
      if (i % 5 == 1) x.factors[i] = 0x1p30F;
    }
    x.check(what);
  });
}

TEST(ValueBytes, WeightsOfAnySize) {
  // From sums of 2^120 to products that are subnormal.
  for (const float of_p : {1.0F, 0x1p-60F, 0x1p-100F}) {
    for (const float of_factors : {0x1p110F, 1.0F, 0x1p-60F, 0x1p-126F}) {
      for_all([&](Problem x, const std::string& what) {
        if (x.rows > 4) return;
        for (float& p : x.p) p *= of_p;
        for (float& f : x.factors) f *= of_factors;
        x.check(what + " " + std::to_string(std::log2(of_p)) + " " + std::to_string(std::log2(of_factors)));
      });
    }
  }
}

TEST(ValueBytes, ARowDoesNotDependOnTheOthers) {
  for_all([](Problem x, const std::string& what) {
    const std::vector<float> before = x.sums();
    for (std::int64_t j = 0; j < kKeyTile; ++j) x.p[(x.rows - 1) * kKeyTile + j] = 0x1p-120F;  // no 16 bits of that
    const std::vector<float> after = x.sums();
    for (std::int64_t i = 0; i < (x.rows - 1) * x.d; ++i) ASSERT_EQ(after[i], before[i]) << what;
  });
}

TEST(ValueBytes, TheLargestWeightIsNotRoundedOutOfRange) {
  for_all([](Problem x, const std::string& what) {
    std::fill(x.factors.begin(), x.factors.end(), 1.0F);
    for (const float p : {1.0F, std::nextafter(1.0F, 0.0F), std::nextafter(1.0F, 2.0F), 1.9999F, 1.999984F}) {
      std::fill(x.p.begin(), x.p.end(), p);
      x.check(what + " " + std::to_string(p));
    }
  });
}

TEST(ValueBytes, EqualWeightsGiveExactSums) {
  for_all([](Problem x, const std::string& what) {
    std::fill(x.factors.begin(), x.factors.end(), 1.0F);
    std::fill(x.p.begin(), x.p.end(), 1.0F);
    if (x.words.table->at(1) != std::round(x.words.table->at(1) * 4) / 4) return;  // lloyd4
    const std::vector<float> got = x.sums(), want = x.sums(false);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << " " << i;
  });
}

TEST(ValueBytes, WhatIsNotFiniteIsReported) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for_all([bad](Problem x, const std::string& what) {
      x.factors.back() = bad;
      EXPECT_TRUE(x.sums().empty()) << what;
      x.factors.back() = 1.0F;
      x.p.back() = bad;
      EXPECT_TRUE(x.sums().empty()) << what;
    });
  }
}

TEST(ValueBytes, AKeyWithoutWeightAddsNothing) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for_all([](Problem x, const std::string& what) {
    for (std::int64_t r = 0; r < x.rows; ++r) x.p[r * kKeyTile + 40] = 0.0F;
    const std::vector<float> before = x.sums();
    for (const float factor : {kInf, kNan, -1.0F, 0x1p120F}) {
      for (std::int64_t b = 0; b < x.d / x.block; ++b) x.factors[b * kKeyTile + 40] = factor;
      ASSERT_EQ(x.sums(), before) << what << " " << factor;
    }
  });
}

TEST(ValueBytes, NegativeFactorsAreTakenAsTheyAre) {
  for_all([](Problem x, const std::string& what) {
    for (std::size_t i = 0; i < x.factors.size(); i += 3) x.factors[i] *= -1.0F;
    const std::vector<float> got = x.sums(), want = x.sums(false);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << what << " " << i;
  });
}

}  // namespace
}  // namespace mpfa::cpu
