#include "cpu/query_ops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cache/convert.hpp"
#include "cpu/word_ops.hpp"
#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

TEST(QueryOps, Bf16RowsAreThoseOfTheCodec) {
  on_every_target([] {
    const float inf = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
    for (const std::size_t n : {5, 16, 35}) {
      std::vector<float> x = normal(n, 1);
      x[0] = largest, x[1] = -largest, x[2] = -inf, x[3] = 0x1.01p0F, x[4] = 1e-40F;
      std::vector<float> want = x;
      for (float& v : want) v = bf16_to_float(float_to_bf16(v));
      row_to_bf16(x.data(), static_cast<std::int64_t>(n));
      EXPECT_EQ(x, want) << n;
    }
    float nan = std::numeric_limits<float>::quiet_NaN();
    row_to_bf16(&nan, 1);
    EXPECT_TRUE(std::isnan(nan));
  });
}

TEST(QueryOps, RoundTripsAreThoseOfTheFormats) {
  on_every_target([] {
    for (const auto& [name, round] : {std::pair{"nvfp4", &row_to_nvfp4}, std::pair{"fp8_e4m3", &row_to_fp8_e4m3},
                                      std::pair{"int8", &row_to_int8}}) {
      const BlockFormat f = parse_format(name).value();
      for (const float size : {1.0F, 300.0F, 1e5F, 3e-3F, 1e-4F, 2e-36F, 3e-40F, 1e-42F, 8e37F}) {
        constexpr std::int64_t n = 256;
        std::vector<float> x = normal(n, 1), want(n);
        for (std::int64_t i = 0; i < n; ++i) x[i] = i / 16 == 3 ? 0.0F : std::round(x[i] * 32.0F) / 32.0F * size;
        round_trip_tokens(f, n, 1, x.data(), n, want.data(), n, nullptr);
        EXPECT_TRUE(round(x.data(), n));
        EXPECT_EQ(x, want) << name << " " << size;
      }
      std::vector<float> bad(32, 1.0F);
      EXPECT_FALSE(round(bad.data(), 24));
      bad[20] = std::numeric_limits<float>::infinity();
      EXPECT_FALSE(round(bad.data(), 32));
    }
  });
}

TEST(QueryOps, DotIsSummedInDouble) {
  on_every_target([] {
    for (const std::size_t n : {1, 7, 64, 75}) {
      std::vector<float> x = normal(n, 1), y = normal(n, 2);
      x[0] = 1e8F;
      double want = 0.0;
      for (std::size_t i = 0; i < n; ++i) want += static_cast<double>(x[i]) * y[i];
      EXPECT_NEAR(row_dot(x.data(), y.data(), static_cast<std::int64_t>(n)), want, 1e-7) << n;
    }
  });
}

TEST(QueryOps, ColumnsAreRowsInWordOrderAndComeBack) {
  on_every_target([] {
    for (const auto& [n, per_word] : {std::pair{64, 8}, std::pair{30, 2}, std::pair{7, 1}}) {
      for (const std::int64_t count : {1, 4, 11, 16}) {
        constexpr std::int64_t width = 16, stride = 70;
        const std::vector<float> rows = normal(count * stride, 3);
        std::vector<float> columns(n * width, -1.0F), back(count * stride, -1.0F);
        rows_to_columns(rows.data(), stride, count, n, per_word, columns.data(), width);
        columns_to_rows(columns.data(), width, count, n, per_word, back.data(), stride);
        for (std::int64_t c = 0; c < n; ++c) {
          for (std::int64_t r = 0; r < width; ++r) {
            const float want = r < count ? rows[r * stride + c] : 0.0F;
            ASSERT_EQ(columns[word_index(c, per_word, n / per_word) * width + r], want) << n << " " << count;
            ASSERT_EQ(r < count ? back[r * stride + c] : 0.0F, want);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
