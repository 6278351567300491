#include "formats/elements.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace mpfa::formats {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

static_assert(E2M1::encode(2.5F).bits == 4 && E4M3::decode(0x40) == 2.0F && Int8::encode(-200.0F).bits == 0x81);

template <class Codec>
class FloatCodec : public testing::Test {};
using FloatCodecs = testing::Types<E2M1, E3M0, E4M3, E5M2, F16, Bf16>;
TYPED_TEST_SUITE(FloatCodec, FloatCodecs);

TYPED_TEST(FloatCodec, EveryCodeRoundTripsWithItsSign) {
  for (std::uint32_t code = 0; code < 1U << TypeParam::kBits; ++code) {
    const float v = TypeParam::decode(code);
    if (std::isnan(v)) {
      EXPECT_TRUE(std::isnan(TypeParam::decode(TypeParam::encode(v).bits))) << code;
    } else if (std::isfinite(v)) {
      EXPECT_EQ(TypeParam::encode(v).bits, code) << v;
      EXPECT_FALSE(TypeParam::encode(v).saturated);
    }
  }
}

TYPED_TEST(FloatCodec, EveryMidpointGoesToTheEvenCodeAndItsNeighboursToTheNearest) {
  for (std::uint32_t code = 0; code + 1 < 1U << (TypeParam::kBits - 1); ++code) {
    const float low = TypeParam::decode(code), high = TypeParam::decode(code + 1);
    if (!std::isfinite(high)) break;
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(TypeParam::encode(middle).bits, code + code % 2) << middle;
    EXPECT_EQ(TypeParam::encode(std::nextafter(middle, 0.0F)).bits, code) << middle;
    EXPECT_EQ(TypeParam::encode(std::nextafter(middle, kInf)).bits, code + 1) << middle;
    EXPECT_EQ(TypeParam::encode(-middle).bits ^ (1U << (TypeParam::kBits - 1)), code + code % 2) << middle;
  }
}

TEST(E2m1, TiesTable) {
  const std::vector<std::pair<float, float>> ties{{.25F, 0}, {.75F, 1}, {1.25F, 1}, {1.75F, 2},
                                                  {2.5F, 2}, {3.5F, 4}, {5.0F, 4},  {.2500001F, .5F}};
  for (const auto& [v, expected] : ties) EXPECT_EQ(E2M1::decode(E2M1::encode(v).bits), expected) << v;
}

TEST(E2m1, SaturationStartsHalfAStepPastTheLargestValue) {
  EXPECT_FALSE(E2M1::encode(6.99F).saturated);
  EXPECT_TRUE(E2M1::encode(7.0F).saturated);
  EXPECT_EQ(E2M1::encode(kInf).bits, 7U);
  EXPECT_EQ(E2M1::encode(-kInf).bits, 15U);
  EXPECT_EQ(E2M1::encode(-kNan).bits, 7U);
}

TEST(E3m0, HoldsZeroAndPowersOfTwoFromAQuarterTo16) {
  EXPECT_EQ(E3M0::decode(0), 0.0F);
  for (std::uint32_t c = 1; c < 8; ++c) EXPECT_EQ(E3M0::decode(c), std::ldexp(1.0F, static_cast<int>(c) - 3));
  EXPECT_EQ(E3M0::encode(.125F).bits, 0U);
  EXPECT_TRUE(E3M0::encode(24.0F).saturated);
  EXPECT_FALSE(E3M0::encode(23.9F).saturated);
}

TEST(E4m3, IsTheFiniteKind) {
  EXPECT_EQ(E4M3::decode(0x40), 2.0F);  // the other convention would read 1
  EXPECT_EQ(E4M3::decode(0x7E), 448.0F);
  EXPECT_TRUE(std::isnan(E4M3::decode(0x7F)) && std::isnan(E4M3::decode(0xFF)));
  EXPECT_EQ(E4M3::encode(kNan).bits, 0x7FU);
  EXPECT_EQ(E4M3::encode(kInf).bits, 0x7EU);
  EXPECT_FALSE(E4M3::encode(464.0F).saturated);
  EXPECT_TRUE(E4M3::encode(std::nextafter(464.0F, kInf)).saturated);
}

TEST(E4m3, NegativeZeroKeepsItsSign) {
  EXPECT_EQ(E4M3::encode(-0.0F).bits, 0x80U);
  EXPECT_TRUE(std::signbit(E4M3::decode(0x80)));
}

TEST(E5m2, HasInfAndNanCodesButEncodingSaturates) {
  EXPECT_EQ(E5M2::decode(0x7C), kInf);
  EXPECT_TRUE(std::isnan(E5M2::decode(0x7D)));
  EXPECT_EQ(E5M2::encode(kInf).bits, 0x7BU);
  EXPECT_EQ(E5M2::encode(kNan).bits, 0x7FU);
  EXPECT_TRUE(E5M2::encode(61440.0F).saturated);
}

TEST(WideFloats, KeepInfAndNanAndSaturateFiniteValues) {
  EXPECT_EQ(F16::encode(-kInf).bits, 0xFC00U);
  EXPECT_EQ(F16::encode(70000.0F).bits, 0x7BFFU);
  EXPECT_EQ(F16::encode(1.0F).bits, 0x3C00U);
  EXPECT_EQ(Bf16::encode(1.0F).bits, 0x3F80U);
  EXPECT_EQ(Bf16::encode(kInf).bits, 0x7F80U);
  EXPECT_EQ(Bf16::encode(std::numeric_limits<float>::max()).bits, 0x7F7FU);
  EXPECT_TRUE(std::isnan(Bf16::decode(Bf16::encode(kNan).bits)) && std::isnan(F16::decode(F16::encode(kNan).bits)));
}

template <class Codec>
void check_integers(int low, int high) {
  for (int n = low; n <= high; ++n) {
    EXPECT_EQ(Codec::decode(Codec::encode(static_cast<float>(n)).bits), static_cast<float>(n));
    const float tie = static_cast<float>(n) + .5F;
    if (n < high) {
      EXPECT_EQ(Codec::decode(Codec::encode(tie).bits), std::nearbyint(tie));
    }
  }
  EXPECT_EQ(Codec::decode(Codec::encode(kInf).bits), static_cast<float>(high));
  EXPECT_EQ(Codec::decode(Codec::encode(-kInf).bits), static_cast<float>(low));
}

TEST(Integers, RoundTiesToEvenAndStaySymmetric) {
  check_integers<Int8>(-127, 127);
  check_integers<Int4>(-7, 7);
  check_integers<Uint4>(0, 15);
  EXPECT_EQ(Int8::encode(-128.0F).bits, 0x81U);
  EXPECT_EQ(Int4::encode(-8.0F).bits, 0x9U);
  EXPECT_TRUE(Int8::encode(127.5F).saturated);
  EXPECT_FALSE(Int8::encode(127.4F).saturated || Uint4::encode(-.5F).saturated);
}

TEST(Lloyd, LevelsAreTheCentroidsOfTheirCells) {
  const auto density = [](double v) { return std::exp(-v * v / 2) / std::sqrt(2 * M_PI); };
  const auto below = [](double v) { return .5 * std::erfc(-v / std::sqrt(2.0)); };
  double error = 1;
  for (std::uint32_t c = 8; c < 16; ++c) {
    const double low = c == 8 ? 0.0 : (Lloyd4::decode(c - 1) + Lloyd4::decode(c)) / 2.0;
    const double high = c == 15 ? 40.0 : (Lloyd4::decode(c) + Lloyd4::decode(c + 1)) / 2.0;
    const double mass = below(high) - below(low);
    EXPECT_NEAR((density(low) - density(high)) / mass, Lloyd4::decode(c), 2e-6);
    EXPECT_EQ(Lloyd4::decode(15 - c), -Lloyd4::decode(c));
    EXPECT_EQ(Lloyd4::encode(static_cast<float>(low) + 1e-4F).bits, c);
    EXPECT_EQ(Lloyd4::encode(-static_cast<float>(low) - 1e-4F).bits, 15 - c);
    error -= 2 * mass * Lloyd4::decode(c) * Lloyd4::decode(c);
  }
  EXPECT_NEAR(error, 0.009501, 1e-5);
}

TEST(E8m0Scale, All256Bytes) {
  EXPECT_EQ(float_bits(E8M0::decode(0)), 0x00400000U);
  for (std::uint32_t b = 0; b < 255; ++b) EXPECT_EQ(E8M0::decode(b), std::ldexp(1.0F, static_cast<int>(b) - 127));
  EXPECT_EQ(E8M0::decode(134), 128.0F);
  EXPECT_TRUE(std::isnan(E8M0::decode(255)));
}

TEST(E8m0Scale, ExponentRulesAreExactNextToEveryBoundary) {
  for (int e = -148; e < 126; ++e) {
    for (const float limit : {6.0F, 7.25F, 448.0F, 57344.0F}) {
      const float edge = std::ldexp(limit, e);
      if (!std::isfinite(edge) || std::ldexp(static_cast<double>(limit), e) != edge) continue;
      EXPECT_EQ(ceil_log2_ratio(edge, limit), e);
      EXPECT_EQ(ceil_log2_ratio(std::nextafter(edge, kInf), limit), e + 1);
      if (edge > 0x1p-120F) {
        EXPECT_EQ(ceil_log2_ratio(std::nextafter(edge, 0.0F), limit), e);
      }
    }
    const float power = std::ldexp(1.0F, e);
    EXPECT_EQ(floor_log2(power), e);
    EXPECT_EQ(floor_log2(std::nextafter(2 * power, 0.0F)), e);
  }
  EXPECT_EQ(floor_log2(0x1p-149F), -149);
}

}  // namespace
}  // namespace mpfa::formats
