#include "cpu/panel_ops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(PanelOps, ProductEqualsDoubleForEveryCountOfRows) {
  on_every_target([] {
    constexpr std::int64_t k = 37;
    for (const std::int64_t width : {kPanel / 2, kPanel}) {
      for (std::int64_t n = 1; n <= 17; ++n) {
        const auto a = normal(n * k, 1), b = normal(k * width, 2), keep = normal(width, 4);
        const auto before = normal(n * width, 3);
        for (const bool transposed : {false, true}) {
          const std::int64_t row = transposed ? 1 : k, step = transposed ? n : 1;
          std::vector<float> fresh = before, kept = before;
          panel_product(n, k, width, a.data(), row, step, b.data(), nullptr, fresh.data());
          panel_product(n, k, width, a.data(), row, step, b.data(), keep.data(), kept.data());
          for (std::int64_t i = 0; i < n * width; ++i) {
            double want = 0.0;
            for (std::int64_t j = 0; j < k; ++j) {
              want += static_cast<double>(a[i / width * row + j * step]) * b[j * width + i % width];
            }
            ASSERT_NEAR(fresh[i], want, 2e-5) << n << "x" << width;
            ASSERT_NEAR(kept[i], want + static_cast<double>(before[i]) * keep[i % width], 2e-5) << n << "x" << width;
          }
        }
      }
    }
  });
}

TEST(PanelOps, SelectedProductHasTheSameBitsAndSkipsWhatWeighsNothing) {
  on_every_target([] {
    constexpr std::int64_t k = 20, n = 5;
    auto a = normal(n * k, 1), b = normal(k * kPanel, 2);
    const std::vector<float> keep(kPanel, 0.5F);
    std::fill_n(b.begin() + 7 * kPanel, kPanel / 2, 0.0F);  // half of the lanes give key 7 no weight
    std::vector<float> plain = normal(n * kPanel, 3), selected = plain, poisoned = plain;
    panel_product(n, k, kPanel, a.data(), k, 1, b.data(), keep.data(), plain.data());
    panel_product_selected(n, k, kPanel, a.data(), k, 1, b.data(), keep.data(), selected.data());
    EXPECT_EQ(plain, selected);
    EXPECT_TRUE(panel_finite(a.data(), n * k));
    for (std::int64_t i = 0; i < n; ++i) a[i * k + 7] = i == 0 ? std::numeric_limits<float>::infinity() : kNan;
    EXPECT_FALSE(panel_finite(a.data(), n * k));
    EXPECT_FALSE(panel_finite(a.data() + 7, 1));
    panel_product_selected(n, k, kPanel, a.data(), k, 1, b.data(), keep.data(), poisoned.data());
    for (std::int64_t i = 0; i < n * kPanel; ++i) {
      if (i % kPanel < kPanel / 2) {
        ASSERT_EQ(poisoned[i], plain[i]);
      } else {
        ASSERT_FALSE(std::isfinite(poisoned[i]));
      }
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
