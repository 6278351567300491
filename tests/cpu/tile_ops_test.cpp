#include "cpu/tile_ops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

TEST(TileOps, GemmEqualsDoubleProductForEveryRowCount) {
  on_every_target([] {
    constexpr std::int64_t k = 37;
    for (const std::int64_t n : {16, 48, 64, 80, 144}) {
      for (std::int64_t rows = 1; rows <= 9; ++rows) {
        const auto a = normal(rows * k, 1), b = normal(k * n, 2);
        std::vector<float> c = normal(rows * n, 3);
        const std::vector<float> before = c;
        gemm(rows, k, n, a.data(), k, b.data(), n, c.data(), n, true);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t j = 0; j < n; ++j) {
            double want = before[r * n + j];
            for (std::int64_t i = 0; i < k; ++i) want += static_cast<double>(a[r * k + i]) * b[i * n + j];
            ASSERT_NEAR(c[r * n + j], want, 2e-5) << rows << "x" << n;
          }
        }
      }
    }
  });
}

TEST(TileOps, Exp2IsAccurateAndMaskedIsExactlyZero) {
  on_every_target([] {
    std::vector<float> x;
    for (float v = -130.0F; v <= 0.0F; v += 0.0917F) x.push_back(v);
    x.push_back(-std::numeric_limits<float>::infinity());
    x.push_back(0.0F);
    std::vector<float> p(x.size());
    const float sum = row_exp2(x.data(), 0.0F, static_cast<std::int64_t>(x.size()), p.data());
    double total = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = x[i] < -126.0F ? 0.0 : std::exp2(static_cast<double>(x[i]));
      EXPECT_NEAR(p[i], want, 3e-7 * want) << x[i];
      total += want;
    }
    EXPECT_EQ(p[x.size() - 2], 0.0F);
    EXPECT_EQ(p[x.size() - 1], 1.0F);
    EXPECT_NEAR(sum, total, 1e-5 * total);
  });
}

TEST(TileOps, NanScoreStaysNanAndDoesNotHideTheMaximum) {
  on_every_target([] {
    std::vector<float> x(64, -1.0F);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    x[40] = 2.0F;
    EXPECT_EQ(row_max(x.data(), 64), 2.0F);
    std::vector<float> p(64);
    EXPECT_TRUE(std::isnan(row_exp2(x.data(), 2.0F, 64, p.data())));
    EXPECT_TRUE(std::isnan(p[5]));
    EXPECT_EQ(p[40], 1.0F);
  });
}

}  // namespace
}  // namespace mpfa::cpu
