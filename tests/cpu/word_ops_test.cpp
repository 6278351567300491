#include "cpu/word_ops.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/words.hpp"

namespace mpfa::cpu {
namespace {

struct Rows {
  std::int64_t d, keys;
  BlockFormat format;
  PageGeometry geometry;
  std::vector<std::byte> data, scales;
  std::vector<float> values, factors;
  formats::WordFormat words;

  Rows(const char* name, std::int64_t head_dim, std::int64_t count)
      : d(head_dim),
        keys(count),
        format(parse_format(name).value()),
        geometry(page_geometry(format, d, keys)),
        data(geometry.data_bytes()),
        scales(geometry.scale_bytes()),
        values(keys * d) {
    std::mt19937 rng(static_cast<unsigned>(d + keys));
    std::normal_distribution<float> normal;
    std::vector<float> x(values.size());
    for (float& v : x) v = normal(rng);
    const PageBytes page{data.data(), geometry.data_row_bytes, scales.data(), geometry.scale_row_bytes};
    quantise_tokens(format, d, 0, keys, x.data(), d, 1.0F, page, nullptr);
    dequantise_tokens(format, d, 0, keys, page, 1.0F, values.data(), d, 1);
    words = formats::word_format(format, d);
    if (words.code == formats::WordCode::none) throw std::runtime_error(std::string(name) + " has no rows of tokens");
    factors.resize(keys * d / words.block + kFactorPadding);
    formats::read_factors(format, d, 0, keys, page, 1.0F, factors.data(), nullptr);
  }
  [[nodiscard]] WordRows view() const {
    return {words.code,
            data.data(),
            geometry.data_row_bytes,
            d / words.per_word,
            factors.data(),
            words.block / words.per_word,
            words.table == nullptr ? nullptr : words.table->data()};
  }
};

TEST(WordOps, EqualTheProductsOfTheDequantisedRows) {
  const auto all = hwy::SupportedTargets();
  int run = 0;
  for (auto rest = all; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const char* name : {"mxfp4", "nvfp4", "int4", "int4_g64", "mxfp4_f32_b16", "e3m0_f32", "lloyd4", "fp8_e4m3",
                             "mxfp8_e5m2", "int8", "int8_g32", "bf16", "fp16", "f32"}) {
      for (const std::int64_t d : {64, 128, 192, 256}) {
        for (const std::int64_t keys : {1, 3, 4, 29, 64}) {
          const Rows x(name, d, keys);
          const WordRows rows = x.view();
          if (!word_ops_take(rows.words)) continue;
          ++run;
          for (const std::int64_t count : {1, 2, 3, 7}) {
            std::mt19937 rng(9);
            std::normal_distribution<float> normal;
            std::vector<float> q(count * d), p(count * keys), s(count * keys), o(count * d, 0.5F);
            for (float& v : q) v = normal(rng);
            for (float& v : p) v = normal(rng);
            word_scores(rows, keys, count, q.data(), s.data(), keys);
            word_accumulate(rows, keys, count, p.data(), keys, o.data(), d);
            for (std::int64_t r = 0; r < count; ++r) {
              for (std::int64_t j = 0; j < keys; ++j) {
                double want = 0;
                for (std::int64_t c = 0; c < d; ++c) {
                  want +=
                      static_cast<double>(q[r * d + word_index(c, x.words.per_word, rows.words)]) * x.values[j * d + c];
                }
                ASSERT_NEAR(s[r * keys + j], want, 1e-4) << name << " d " << d << " key " << j << " row " << r;
              }
              for (std::int64_t c = 0; c < d; ++c) {
                double want = 0.5;
                for (std::int64_t j = 0; j < keys; ++j)
                  want += static_cast<double>(p[r * keys + j]) * x.values[j * d + c];
                ASSERT_NEAR(o[r * d + word_index(c, x.words.per_word, rows.words)], want, 1e-4)
                    << name << " d " << d << " channel " << c;
              }
            }
          }
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  if (run == 0) GTEST_SKIP() << "no instruction set of this machine has vectors of 8 floats";
}

}  // namespace
}  // namespace mpfa::cpu
