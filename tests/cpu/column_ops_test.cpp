#include "cpu/column_ops.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/panel_ops.hpp"
#include "cpu/round_p.hpp"
#include "mpfa/attention.hpp"
#include "tests/cpu/every_target.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Columns of logits: of wide and narrow spread, with masked keys, without any key, with tiny probabilities.
std::vector<float> tile() {
  std::vector<float> x = normal(kKeyTile * kPanel, 7);
  for (std::int64_t r = 0; r < kPanel; ++r) {
    for (std::int64_t j = 0; j < kKeyTile; ++j) {
      float& v = x[j * kPanel + r];
      v *= static_cast<float>(1 + r);
      if (j > 2 * r || r == 5) v = kMasked;
      if (r >= 29 && j >= 16) v -= 140.0F;
    }
  }
  return x;
}

TEST(ColumnOps, EveryModeGivesTheCodesOfTheRowByRowCode) {
  on_every_target([] {
    for (const PMode mode :
         {PMode::f32, PMode::bf16, PMode::e4m3, PMode::e4m3_loglin, PMode::mxfp4, PMode::mxfp4_direct_fast,
          PMode::mxfp4_direct_accurate, PMode::nvfp4, PMode::nvfp4_underflow, PMode::nvfp4_two_level}) {
      for (const bool same_codes : {false, true}) {
        constexpr float kScale = 0.75F, kPScale = 448.0F;
        std::vector<float> x = tile(), m(kPanel, kMasked), keep(kPanel), l(kPanel, 3.0F);
        const std::vector<float> logits = x;
        std::fill_n(m.begin(), 4, 1.5F);
        const std::vector<float> before = m;
        column_max(kKeyTile, kPanel, kScale, x.data(), m.data(), keep.data());
        column_round(mode, kPScale, same_codes, kKeyTile, kPanel, kScale, m.data(), keep.data(), x.data(), l.data());
        for (std::int64_t r = 0; r < kPanel; ++r) {
          std::vector<float> row(kKeyTile);
          for (std::int64_t j = 0; j < kKeyTile; ++j) row[j] = logits[j * kPanel + r] * kScale;
          const float top = std::max(before[r], *std::max_element(row.begin(), row.end()));
          ASSERT_EQ(m[r], top) << r;
          if (top == kMasked) {
            EXPECT_EQ(keep[r], 1.0F);
            EXPECT_EQ(l[r], 3.0F);
            std::fill(row.begin(), row.end(), 0.0F);
          } else {
            ASSERT_NEAR(keep[r], before[r] == kMasked ? 0.0F : std::exp2(before[r] - top), 1e-6);
            const float sum = round_row(mode, kPScale, top, same_codes, row.data());
            ASSERT_NEAR(l[r], 3.0F * keep[r] + sum, 1e-5F * l[r]) << r;
          }
          for (std::int64_t j = 0; j < kKeyTile; ++j) {
            ASSERT_EQ(x[j * kPanel + r], row[j]) << static_cast<int>(mode) << " row " << r << " key " << j;
          }
        }
      }
    }
  });
}

TEST(ColumnOps, NanScoreSpoilsItsColumnAndNoOther) {
  on_every_target([] {
    for (const PMode mode : {PMode::bf16, PMode::e4m3_loglin, PMode::mxfp4_direct_fast, PMode::nvfp4}) {
      std::vector<float> x(kKeyTile * kPanel, -1.0F), m(kPanel, kMasked), keep(kPanel), l(kPanel, 0.0F);
      x[9 * kPanel + 3] = kNan;
      x[20 * kPanel + 3] = 2.0F;
      column_max(kKeyTile, kPanel, 1.0F, x.data(), m.data(), keep.data());
      EXPECT_EQ(m[3], 2.0F);
      column_round(mode, 256.0F, true, kKeyTile, kPanel, 1.0F, m.data(), keep.data(), x.data(), l.data());
      for (std::int64_t r = 0; r < kPanel; ++r) EXPECT_EQ(std::isnan(l[r]), r == 3) << r;
    }
  });
}

}  // namespace
}  // namespace mpfa::cpu
