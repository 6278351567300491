// Scores, weighted sums and expansion of packed rows against the dequantised rows, on every instruction set.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "cpu/factor_ops.hpp"
#include "cpu/score_ops.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/value_ops.hpp"

namespace mpfa::cpu {
namespace {

std::vector<float> gaussian(std::int64_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

/// A page of quantised tokens, its dequantised values, and its factors in both layouts.
struct Rows {
  std::int64_t d, keys;
  BlockFormat format;
  PageGeometry geometry;
  std::vector<std::byte> data, scales;
  std::vector<float> values, factors, columns, minima, spare;
  formats::WordFormat words;

  Rows(const char* name, std::int64_t head_dim, std::int64_t count)
      : d(head_dim),
        keys(count),
        format(parse_format(name).value()),
        geometry(page_geometry(format, d, keys)),
        data(geometry.data_bytes()),
        scales(geometry.scale_bytes()),
        values(keys * d),
        minima(kKeyTile),
        spare(keys * d) {
    const std::vector<float> x = gaussian(keys * d, static_cast<unsigned>(d + keys));
    const PageBytes bytes{data.data(), geometry.data_row_bytes, scales.data(), geometry.scale_row_bytes};
    quantise_tokens(format, d, 0, keys, x.data(), d, 1.0F, bytes, nullptr);
    dequantise_tokens(format, d, 0, keys, page(), 1.0F, values.data(), d, 1);
    words = formats::word_format(format, d);
    if (words.code == formats::WordCode::none) throw std::runtime_error(std::string(name) + " has no rows of tokens");
    const std::int64_t blocks = d / words.block;
    factors.resize(keys * blocks + kFactorPadding);
    formats::read_factors(format, d, 0, keys, page(), 1.0F, factors.data(), minima.data());
    columns.resize(std::max<std::int64_t>(blocks, 2) * kKeyTile);
    read_factor_columns(format, d, 0, keys, page(), 1.0F, columns.data(), minima.data(), spare.data());
  }
  [[nodiscard]] ConstPageBytes page() const {
    return {data.data(), geometry.data_row_bytes, scales.data(), geometry.scale_row_bytes};
  }
  [[nodiscard]] WordRows view(const std::vector<float>& f) const {
    return {words.code,
            data.data(),
            geometry.data_row_bytes,
            d / words.per_word,
            f.data(),
            words.block / words.per_word,
            words.table == nullptr ? nullptr : words.table->data()};
  }
};

constexpr auto kFormats = {"mxfp4",    "nvfp4",      "int4", "int4_g64", "mxfp4_f32_b16", "e3m0_f32", "lloyd4",
                           "fp8_e4m3", "mxfp8_e5m2", "int8", "int8_g32", "bf16",          "fp16",     "f32"};

/// Calls fn for rows of every format and several shapes, on every instruction set of this machine.
void for_all_rows(const std::function<void(const Rows&, const std::string& what)>& fn) {
  for (auto rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const char* name : kFormats) {
      for (const std::int64_t d : {64, 128, 192, 256}) {
        for (const std::int64_t keys : {1, 3, 16, 29, 64}) {
          fn(Rows(name, d, keys),
             std::string(instruction_set()) + " " + name + " d " + std::to_string(d) + " keys " + std::to_string(keys));
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(PackedOps, FactorColumnsAreTheFactorsTransposed) {
  for_all_rows([](const Rows& x, const std::string& what) {
    const std::int64_t blocks = x.d / x.words.block;
    for (std::int64_t j = 0; j < x.keys; ++j) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        ASSERT_EQ(x.columns[b * kKeyTile + j], x.factors[j * blocks + b]) << what << " key " << j << " block " << b;
      }
    }
  });
}

TEST(PackedOps, EveryScaleByteIsReadAsItIsDefined) {
  for (auto rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const char* name : {"mxfp4", "nvfp4", "mxfp4_f32", "int4_g64", "lloyd4", "int4_asym"}) {
      Rows x(name, 128, 64);
      for (std::size_t i = 0; i < x.scales.size(); ++i) x.scales[i] = static_cast<std::byte>(i * 7 + i / 256);
      std::vector<float> minima(kKeyTile);
      formats::read_factors(x.format, x.d, 0, 64, x.page(), 0.75F, x.factors.data(), x.minima.data());
      read_factor_columns(x.format, x.d, 0, 64, x.page(), 0.75F, x.columns.data(), minima.data(), x.spare.data());
      const std::int64_t blocks = x.d / x.words.block;
      for (std::int64_t i = 0; i < 64 * blocks; ++i) {
        const float got = x.columns[i % blocks * kKeyTile + i / blocks], want = x.factors[i];
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want)
            << instruction_set() << " " << name << " " << i << ": " << got << " is not " << want;
      }
      for (std::int64_t j = 0; x.words.has_minimum && j < 64; ++j) {
        ASSERT_TRUE(minima[j] == x.minima[j] || (std::isnan(minima[j]) && std::isnan(x.minima[j]))) << j;
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(PackedOps, ScoresEqualTheProductsOfTheDequantisedRows) {
  for_all_rows([](const Rows& x, const std::string& what) {
    const WordRows rows = x.view(x.columns);
    if (!score_ops_take(rows.words)) return;
    for (const std::int64_t count : {1, 2, 3, 4, 7, 8}) {
      std::vector<float> q = gaussian(count * x.d, 9), memory(packed_floats(count, x.d)), s(count * kKeyTile, -1.0F);
      for (float& value : q) value *= count == 3 ? 0x1p-104F : 1.0F;  // too small for integers
      const PackedQueries packed = pack_queries(rows, count, q.data(), 0.0F, memory.data());
      ASSERT_TRUE(count != 3 || packed.integers == nullptr) << what;
      score_keys(rows, x.keys, count, packed, s.data());
      double error = 0, norm = 0;
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t j = 0; j < x.keys; ++j) {
          double want = 0;
          for (std::int64_t c = 0; c < x.d; ++c) {
            const double product = static_cast<double>(q[r * x.d + c]) * x.values[j * x.d + c];
            want += product;
            norm += product * product;  // not of the sums: these may cancel
          }
          ASSERT_NEAR(s[r * kKeyTile + j], want, 1e-4) << what << " row " << r << " key " << j;
          error += (s[r * kKeyTile + j] - want) * (s[r * kKeyTile + j] - want);
        }
        for (std::int64_t j = x.keys; j < kKeyTile; ++j) ASSERT_EQ(s[r * kKeyTile + j], -1.0F) << what;
      }
      ASSERT_LE(error, norm * 1e-12) << what;  // relative L2 of 1e-6
    }
  });
}

TEST(PackedOps, ScoresLoseNoMoreThanTheSlackAndDependOnTheirRowAndKeyAlone) {
  for_all_rows([](const Rows& x, const std::string& what) {
    if (x.keys != 29 || !score_ops_take(x.d / x.words.per_word)) return;
    std::vector<float> q = gaussian(4 * x.d, 9);
    for (std::int64_t r = 0; r < 4; ++r) q[r * x.d + 5 * r] = 3000.0F;  // the others need their lowest digits
    std::vector<float> columns = x.columns, memory(packed_floats(4, x.d));
    const auto scores = [&](float slack, const std::vector<float>& factors, std::int64_t first, std::int64_t count) {
      const WordRows rows = x.view(factors);
      std::vector<float> s(4 * kKeyTile);
      score_keys(rows, x.keys, count, pack_queries(rows, count, q.data() + first * x.d, slack, memory.data()),
                 s.data());
      return s;
    };
    const std::vector<float> exact = scores(0.0F, columns, 0, 4);
    for (const float slack : {1e-3F, 0.1F, 1.0F}) {
      const std::vector<float> got = scores(slack, columns, 0, 4);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], exact[i], slack + 4e-3F) << what << " " << i;
      std::vector<float> others = columns;
      for (std::int64_t b = 0; b < x.d / x.words.block; ++b) others[b * kKeyTile + 20] *= 1e6F;
      const std::vector<float> alone = scores(slack, columns, 2, 1), beside = scores(slack, others, 0, 4);
      for (std::int64_t j = 0; j < x.keys; ++j) {
        ASSERT_EQ(alone[j], got[2 * kKeyTile + j]) << what << " " << j;
        ASSERT_TRUE(j == 20 || beside[j] == got[j]) << what << " " << j;
      }
    }
  });
}

TEST(PackedOps, QueriesOfAnySizeGiveAccurateScores) {
  constexpr std::int64_t d = 64, keys = 16;
  const Rows x("mxfp4", d, keys);
  const WordRows rows = x.view(x.columns);
  if (!score_ops_take(rows.words)) GTEST_SKIP() << "no vectors of 8 floats";
  for (const float unit : {1.0F, 0x1p-110F, 0x1p-126F, 0x1p110F}) {
    for (const float outlier : {1.0F, 3000.0F}) {
      std::vector<float> q = gaussian(d, 9), memory(packed_floats(1, d)), s(kKeyTile);
      q[3] = 1.9921875F * outlier;  // the largest mantissa of bf16
      for (float& v : q) v *= unit;
      score_keys(rows, keys, 1, pack_queries(rows, 1, q.data(), 0.0F, memory.data()), s.data());
      for (std::int64_t j = 0; j < keys; ++j) {
        double want = 0, norm = 0;
        for (std::int64_t c = 0; c < d; ++c) {
          want += static_cast<double>(q[c]) * x.values[j * d + c];
          norm += std::abs(static_cast<double>(q[c]) * x.values[j * d + c]);
        }
        EXPECT_NEAR(s[j], want, norm * 2e-6 + 0x1p-140) << unit << " " << outlier << " key " << j;
      }
    }
  }
}

TEST(PackedOps, QueriesThatAreNotFiniteGiveScoresThatAreNotFinite) {
  const Rows x("nvfp4", 64, 16);
  const WordRows rows = x.view(x.columns);
  if (!score_ops_take(rows.words)) GTEST_SKIP() << "no vectors of 8 floats";
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> q = gaussian(2 * 64, 9), memory(packed_floats(2, 64)), s(2 * kKeyTile);
    q[64 + 7] = bad;
    score_keys(rows, 16, 2, pack_queries(rows, 2, q.data(), 0.0F, memory.data()), s.data());
    for (std::int64_t j = 0; j < 16; ++j) {
      EXPECT_TRUE(std::isfinite(s[j]));
      EXPECT_FALSE(std::isfinite(s[kKeyTile + j]));
    }
  }
}

TEST(PackedOps, SumsEqualTheSumsOfTheDequantisedRows) {
  for_all_rows([](const Rows& x, const std::string& what) {
    const WordRows rows = x.view(x.columns);
    if (!value_ops_take(x.d, x.words.block)) return;
    for (const std::int64_t count : {1, 2, 3, 4, 7, 8}) {
      const std::vector<float> p = gaussian(count * kKeyTile, 9);
      const std::vector<float> from = gaussian(count * x.d, 10);
      std::vector<float> weights(8 * kKeyTile * x.d / 16), to(count * x.d);
      ASSERT_TRUE(add_values(rows, x.keys, count, p.data(), weights.data(), from.data(), to.data(), x.d)) << what;
      double error = 0, norm = 0;
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t c = 0; c < x.d; ++c) {
          const std::int64_t at = r * x.d + value_index(c, value_span(rows.code));
          double want = from[at];
          for (std::int64_t j = 0; j < x.keys; ++j) {
            want += static_cast<double>(p[r * kKeyTile + j]) * x.values[j * x.d + c];
          }
          ASSERT_NEAR(to[at], want, 1e-4) << what << " row " << r << " channel " << c;
          error += (to[at] - want) * (to[at] - want);
          norm += want * want;
        }
      }
      ASSERT_LE(error, norm * 1e-13) << what;
    }
  });
}

TEST(PackedOps, CodesThatAreNotFiniteReachTheirOwnKeyOnly) {
  for (const char* name : {"fp8_e4m3", "fp8_e5m2", "mxfp8_e5m2"}) {
    for (const int code : {0x7F, 0xFF}) {
      Rows x(name, 64, 20);
      x.data[7 * x.geometry.data_row_bytes + 63] = static_cast<std::byte>(code);
      const WordRows rows = x.view(x.columns);
      if (!score_ops_take(rows.words)) GTEST_SKIP() << "no vectors of 8 floats";
      const std::vector<float> q = gaussian(64, 9), p(kKeyTile, 0.0F), from(64, 1.0F);
      std::vector<float> memory(packed_floats(1, 64)), s(kKeyTile), weights(4 * kKeyTile), to(64);
      score_keys(rows, 20, 1, pack_queries(rows, 1, q.data(), 0.0F, memory.data()), s.data());
      for (std::int64_t j = 0; j < 20; ++j) EXPECT_EQ(std::isnan(s[j]), j == 7) << name << " key " << j;
      EXPECT_FALSE(add_values(rows, 20, 1, p.data(), weights.data(), from.data(), to.data(), 64)) << name;
    }
  }
}

TEST(PackedOps, SumsThatAreNotFiniteAreReported) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for_all_rows([bad](const Rows& x, const std::string& what) {
      if (!value_ops_take(x.d, x.words.block)) return;
      std::vector<float> columns = x.columns, weights(8 * kKeyTile * x.d / 16), to(x.d);
      columns[(x.d / x.words.block - 1) * kKeyTile + x.keys - 1] = bad;
      const std::vector<float> none(kKeyTile, 0.0F), p(kKeyTile, 0.5F), from(x.d, 1.0F);
      const auto add = [&](const std::vector<float>& w) {
        return add_values(x.view(columns), x.keys, 1, w.data(), weights.data(), from.data(), to.data(), x.d);
      };
      EXPECT_FALSE(add(p)) << what;
      EXPECT_TRUE(add(none)) << what;
      EXPECT_EQ(to, from) << what;
    });
  }
}

TEST(PackedOps, ExpandedRowsAreTheDequantisedRows) {
  for_all_rows([](const Rows& x, const std::string& what) {
    const WordRows rows = x.view(x.factors);
    if (!word_ops_take(rows.words)) return;
    std::vector<float> out(x.keys * x.d);
    word_expand(rows, x.keys, nullptr, out.data(), x.d);
    for (std::int64_t i = 0; i < x.keys * x.d; ++i) {
      const std::int64_t at = i / x.d * x.d + word_index(i % x.d, x.words.per_word, rows.words);
      ASSERT_EQ(out[at], x.values[i]) << what << " " << i;
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
