// How large errors are: known values on normal data, and bounds that hold for any block.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>

#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

std::vector<float> normal_tokens(std::size_t n, float sigma) {
  std::mt19937 gen(11);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = normal(gen);
  return x;
}

double relative_l2(const std::string& name, const std::vector<float>& x, std::int64_t d) {
  std::vector<float> y(x.size());
  round_trip_tokens(format(name), d, static_cast<std::int64_t>(x.size()) / d, x.data(), d, y.data(), d, nullptr);
  double error = 0, total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    total += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / total);
}

TEST(NormalData, RelativeErrorIsTheKnownOne) {
  const std::vector<float> x = normal_tokens(4096 * 128, 1.0F);
  for (const auto& [name, error] : std::vector<std::pair<std::string, double>>{
           {"nvfp4", .0955}, {"nvfp4_4over6", .0870}, {"mxfp4", .1115}, {"mxfp4_ocp", .1148}, {"mxfp4_ceil", .1150}}) {
    EXPECT_NEAR(relative_l2(name, x, 128) / error, 1.0, .02) << name;
  }
}

TEST(Lloyd4Quantise, ReachesTheLloydMaxErrorWhateverTheTransformsNormalisation) {
  for (const float sigma : {1.0F, 1.0F / std::sqrt(128.0F), 50.0F}) {
    const double error = relative_l2("lloyd4", normal_tokens(2048 * 128, sigma), 128);
    EXPECT_NEAR(error * error / .009501, 1.0, .02) << sigma;
  }
}

/// Largest |error| of a block in units of its amax.
double bound(const BlockFormat& f) {
  const bool float_rule = f.rule == ScaleRule::amax || f.rule == ScaleRule::ceil;
  switch (f.element) {
    case Element::e4m3: return float_rule ? 1.0 / 16 : 1.0 / 8;
    case Element::e5m2: return 1.0 / 8;
    case Element::e2m1: return f.rule == ScaleRule::amax ? .18 : .26;  // the widest gap is 4 to 6
    case Element::e3m0: return .2501;                                  // 8 to 16
    case Element::int8: return 1.0 / 254 + 1e-3;
    case Element::int4: return 1.0 / 14 + 1e-3;
    case Element::uint4: return 2.0 / 30 + 2e-3;
    default: return 1.0;
  }
}

/// Magnitudes 0 or .25 to 2000, so that no scale of a format is limited (nvfp4 ends at 448 * 6) or subnormal.
std::vector<float> arbitrary_block(std::size_t n) {
  const int exponent = *rc::gen::inRange(-2, 2);
  const auto integers = *rc::gen::container<std::vector<int>>(n, rc::gen::inRange(-1000, 1001));
  std::vector<float> x;
  for (const int i : integers) x.push_back(std::ldexp(static_cast<float>(i), exponent));
  return x;
}

std::string arbitrary_format() {
  return *rc::gen::suchThat(rc::gen::elementOf(format_names()), [](const std::string& n) {
    return format(n).scale != ScaleType::none && format(n).axis == PackAxis::head_dim && format(n).block_keys == 1;
  });
}

RC_GTEST_PROP(AnyBlock, ErrorStaysUnderTheFormatsBound, ()) {
  const std::string name = arbitrary_format();
  const BlockFormat f = format(name);
  const std::vector<float> x = arbitrary_block(static_cast<std::size_t>(f.block_channels == 0 ? 40 : f.block_channels));
  const std::vector<float> y = round_trip(name, x);
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  for (std::size_t i = 0; i < x.size(); ++i) {
    RC_ASSERT(std::fabs(x[i] - y[i]) <= bound(f) * amax);
  }
}

RC_GTEST_PROP(AnyBlock, DoesNotDependOnItsNeighbours, ()) {
  const std::string name = arbitrary_format();
  const BlockFormat f = format(name);
  Page page(f, 48, 3), other(f, 48, 3);
  std::vector<float> x = arbitrary_block(3 * 48);
  page.write(0, x);
  for (std::size_t i = 0; i < 48; ++i) x[i] = x[96 + i] = 1e30F;
  other.write(0, x);
  RC_ASSERT(page.read(1, 1) == other.read(1, 1));
}

RC_GTEST_PROP(AnyBlock, CutOffByTheHeadUsesItsRealElementsOnly, ()) {
  const std::string name = arbitrary_format();
  const BlockFormat f = format(name);
  RC_PRE(f.block_channels != 0);
  const auto block = static_cast<std::size_t>(f.block_channels);
  const auto tail = static_cast<std::size_t>(*rc::gen::inRange<int>(1, f.block_channels));
  const std::vector<float> x = arbitrary_block(block + tail);
  const std::vector<float> y = round_trip(name, x);
  const std::vector<float> alone = round_trip(name, std::vector<float>(x.begin() + f.block_channels, x.end()));
  RC_ASSERT(std::equal(alone.begin(), alone.end(), y.begin() + f.block_channels));
}

}  // namespace
}  // namespace mpfa::test
