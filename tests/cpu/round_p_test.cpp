#include "cpu/round_p.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention/probabilities.hpp"

namespace mpfa::cpu {
namespace {

/// The kernel's own rounding of P equals the plain statement of the rule up to values whose exp2 differs by an ulp and
/// sits on a rounding boundary: rarely.
TEST(RoundP, EveryModeFollowsTheRule) {
  std::mt19937 rng(5);
  std::uniform_real_distribution<float> logit(-40.0F, 0.0F);
  for (const auto& [mode, scale] :
       {std::pair{PMode::bf16, 1.0F}, std::pair{PMode::e4m3, 256.0F}, std::pair{PMode::e4m3, 448.0F},
        std::pair{PMode::e4m3_loglin, 256.0F}, std::pair{PMode::mxfp4, 1.0F}, std::pair{PMode::mxfp4_direct_fast, 1.0F},
        std::pair{PMode::mxfp4_direct_accurate, 1.0F}, std::pair{PMode::nvfp4, 1.0F},
        std::pair{PMode::nvfp4_two_level, 1.0F}, std::pair{PMode::nvfp4_underflow, 1.0F}}) {
    int differ = 0;
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(kKeyTile), want(kKeyTile);
      for (float& v : x) v = round % 4 == 0 ? logit(rng) / 8 : logit(rng);
      x[7] = -std::numeric_limits<float>::infinity();
      x[9] = 0.0F;
      round_probabilities(mode, scale, x.data(), want.data(), kKeyTile);
      const float sum = round_row(mode, scale, 0.0F, true, x.data());
      double total = 0;
      for (std::int64_t i = 0; i < kKeyTile; ++i) {
        differ += std::abs(x[i] - want[i]) > 1e-6F * want[i] ? 1 : 0;
        // One code step: an eighth of the value for 8 bits and more, up to half of it and its block's step for 4.
        const bool wide = mode == PMode::bf16 || mode == PMode::e4m3 || mode == PMode::e4m3_loglin;
        ASSERT_NEAR(x[i], want[i], wide ? want[i] / 8 + 0x1p-9F / scale : want[i] / 2 + 0.1F);
        total += x[i];
      }
      ASSERT_NEAR(sum, total, 1e-5 * total);
      ASSERT_EQ(x[7], 0.0F);
    }
    EXPECT_LE(differ, 200 * kKeyTile / 1000) << static_cast<int>(mode);
  }
}

}  // namespace
}  // namespace mpfa::cpu
