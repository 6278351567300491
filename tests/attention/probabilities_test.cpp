#include "attention/probabilities.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr PMode kModes[] = {PMode::f32,
                            PMode::bf16,
                            PMode::e4m3,
                            PMode::e4m3_loglin,
                            PMode::mxfp4,
                            PMode::mxfp4_direct_fast,
                            PMode::mxfp4_direct_accurate,
                            PMode::nvfp4,
                            PMode::nvfp4_two_level,
                            PMode::nvfp4_underflow};

float scale_of(PMode m) {
  return m == PMode::e4m3 || m == PMode::e4m3_loglin ? 256.0F : 1.0F;
}

std::vector<float> rounded(PMode mode, const std::vector<float>& log2_p) {
  std::vector<float> p(log2_p.size(), -1.0F);
  round_probabilities(mode, scale_of(mode), log2_p.data(), p.data(), static_cast<std::int64_t>(p.size()));
  return p;
}

TEST(Probabilities, MaskedKeysAreZeroAndChangeNothing) {
  for (const PMode mode : kModes) {
    EXPECT_EQ(rounded(mode, std::vector<float>(kKeyTile, kMasked)), std::vector<float>(kKeyTile, 0.0F));
    std::vector<float> x(kKeyTile, kMasked);
    x[5] = 0.0F;
    const std::vector<float> p = rounded(mode, x);
    EXPECT_EQ(std::count(p.begin(), p.end(), 0.0F), kKeyTile - 1) << static_cast<int>(mode);
    EXPECT_NEAR(p[5], 1.0F, 0.04F) << static_cast<int>(mode);
  }
}

TEST(Probabilities, ShortTilesRoundLikeMaskedOnes) {
  for (const PMode mode : kModes) {
    std::vector<float> x{-0.3F, -1.7F, -4.1F};
    const std::vector<float> brief = rounded(mode, x);
    x.resize(kKeyTile, kMasked);
    const std::vector<float> whole = rounded(mode, x);
    for (std::size_t i = 0; i < brief.size(); ++i) EXPECT_EQ(brief[i], whole[i]);
  }
}

TEST(Probabilities, NanIsNotHidden) {
  for (const PMode mode : kModes) {
    std::vector<float> x(kKeyTile, -1.0F);
    x[40] = std::nanf("");
    EXPECT_TRUE(std::isnan(rounded(mode, x)[0])) << static_cast<int>(mode);
  }
}

TEST(Probabilities, ErrorOfEachModeIsWhatItsBitsAllow) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::array<double, std::size(kModes)> error{};
  double size = 0.0;
  for (int n = 0; n < 200; ++n) {
    std::vector<float> x(kKeyTile);
    float top = kMasked;
    for (float& v : x) top = std::max(top, v = 1.4427F * normal(rng));
    for (float& v : x) v -= top;
    const std::vector<float> exact = rounded(PMode::f32, x);
    for (const float p : exact) size += static_cast<double>(p) * p;
    for (std::size_t m = 0; m < std::size(kModes); ++m) {
      const std::vector<float> p = rounded(kModes[m], x);
      for (std::size_t i = 0; i < p.size(); ++i) error[m] += std::pow(static_cast<double>(p[i]) - exact[i], 2);
    }
  }
  // 1.1 times what a separate computation of the same rules gives for N(0,1) logits.
  const double bound[] = {0.0, .0015, .025, .048, .145, .295, .265, .103, .103, .103};
  for (std::size_t m = 0; m < std::size(kModes); ++m) {
    const double relative = std::sqrt(error[m] / size);
    EXPECT_LE(relative, bound[m]) << m;
    EXPECT_GE(relative, bound[m] / 1.3) << m;
  }
}

TEST(Probabilities, LogLinearCodesAreEightPerOctave) {
  std::vector<float> x;
  for (int i = 0; i < 64; ++i) x.push_back(static_cast<float>(-i) / 8.0F);
  const std::vector<float> p = rounded(PMode::e4m3_loglin, x);
  EXPECT_EQ(p[0], 1.0F);             // 256 / 256
  EXPECT_EQ(p[1], 240.0F / 256.0F);  // the next code below 256
  for (int octave = 0; octave < 7; ++octave) EXPECT_EQ(p[octave * 8], std::exp2(-static_cast<float>(octave)));
  for (std::size_t i = 1; i < p.size(); ++i) EXPECT_LT(p[i], p[i - 1]);
}

TEST(Probabilities, DirectCodesAreTheLine) {
  // Block maximum 1: e_B = 0 and y = log2 p + log2 6. p = 1/2 gives 1.5 * 1.585 + 1.2 = 3.58 -> code 4.
  std::vector<float> x(kKeyTile, kMasked);
  x[0] = 0.0F;
  x[1] = -1.0F;
  x[2] = -5.0F;
  x[4] = -1.0F;
  EXPECT_EQ(rounded(PMode::mxfp4_direct_fast, x)[1], 4.0F / 6.0F);
  EXPECT_EQ(rounded(PMode::mxfp4_direct_fast, x)[2], 0.0F);
  EXPECT_EQ(rounded(PMode::mxfp4_direct_accurate, x)[1], 4.0F / 6.0F);
  EXPECT_EQ(rounded(PMode::mxfp4_direct_accurate, x)[4], 0.5F);  // every fourth key through exp2
}

/// Share of blocks of 16 that become all zero when the row maximum is `nats` above the rest.
double emptied_blocks(PMode mode, float nats) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.0F, 0.25F);
  int empty = 0;
  int blocks = 0;
  for (int tile = 0; tile < 64; ++tile) {
    std::vector<float> x(kKeyTile);
    for (float& v : x) v = (normal(rng) - nats) * 1.442695F;
    const std::vector<float> p = rounded(mode, x);
    for (std::size_t b = 0; b < p.size(); b += 16, ++blocks) {
      empty += std::all_of(p.begin() + b, p.begin() + b + 16, [](float v) { return v == 0.0F; });
    }
  }
  return static_cast<double>(empty) / blocks;
}

TEST(Probabilities, UnderflowRuleKeepsBlocksThatOneLevelEmpties) {
  EXPECT_GT(emptied_blocks(PMode::nvfp4, 6.0F), 0.9);
  EXPECT_LT(emptied_blocks(PMode::nvfp4_underflow, 6.0F), 0.1);
  EXPECT_EQ(emptied_blocks(PMode::nvfp4_two_level, 6.0F), 0.0);
}

}  // namespace
}  // namespace mpfa
