// Row quantisers in vectors against quantise_tokens: bytes, scales and counters, on every instruction set of the
// machine.
#include "formats/row_quantise.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>

#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

using formats::bits_float;
using formats::float_bits;

/// Runs `body` once per instruction set that the compiler offered and the machine has.
template <class Body>
void on_every_target(Body body) {
  for (auto rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<std::string> row_formats() {
  std::vector<std::string> names;
  for (const std::string& name : format_names()) {
    const BlockFormat f = format(name);
    if (f.axis == PackAxis::head_dim && f.block_keys == 1) names.push_back(name);
  }
  return names;
}

bool takes_global(const std::string& name) {
  return format(name).scale == ScaleType::e4m3 || format(name).rule == ScaleRule::fixed;
}

/// Rows of `x` [.., d] written both ways, a page at a time; stops at the first page that differs.
void expect_same(const std::string& name, std::int64_t d, const std::vector<float>& x, float global = 1.0F) {
  constexpr std::int64_t kSlots = 64;
  const BlockFormat f = format(name);
  const formats::RowQuantiser quantiser(f, d);
  const auto rows = static_cast<std::int64_t>(x.size()) / d;
  std::vector<float> row(static_cast<std::size_t>(formats::padded_row(d)), 0.0F);
  for (std::int64_t first = 0; first < rows; first += kSlots) {
    Page want(f, d, kSlots), got(f, d, kSlots);
    const std::int64_t n = std::min(kSlots, rows - first);
    want.write(0, {x.begin() + first * d, x.begin() + (first + n) * d}, global);
    for (std::int64_t slot = 0; slot < n; ++slot) {
      std::copy_n(x.begin() + (first + slot) * d, d, row.begin());
      quantiser.write(slot, row.data(), global, got.bytes(), got.counters);
    }
    const auto counted = [](const QuantiseCounters& c) {
      return std::vector<std::int64_t>{c.nonfinite_blocks, c.saturated_elements, c.flushed_blocks};
    };
    ASSERT_EQ(want.scales, got.scales) << name << " head dim " << d << " rows from " << first;
    ASSERT_EQ(want.data, got.data) << name << " head dim " << d << " rows from " << first;
    ASSERT_EQ(counted(want.counters), counted(got.counters)) << name << " head dim " << d << " rows from " << first;
  }
}

/// Every upper half of a float, with lower halves on both sides of what rounding looks at.
std::vector<float> every_float(std::uint32_t low) {
  std::vector<float> x(1 << 16);
  for (std::uint32_t i = 0; i < x.size(); ++i) x[i] = bits_float(i << 16 | low);
  return x;
}

TEST(RowQuantiser, EveryElement) {
  // One element beside an anchor that fixes the scale at a power of two: each code, tie, subnormal and overflow is met.
  on_every_target([] {
    for (const std::string& name : row_formats()) {
      const float limit = element_max(format(name).element);
      for (const std::uint32_t low : {0U, 1U, 0x8000U, 0xFFFFU}) {
        std::vector<float> rows;
        for (const float v : every_float(low)) {
          if (format(name).scale != ScaleType::none && !(std::fabs(v) <= limit)) continue;
          if (rows.size() % 16 == 0) rows.push_back(format(name).scale == ScaleType::none ? 1.0F : limit);
          rows.push_back(v);
        }
        ASSERT_NO_FATAL_FAILURE(expect_same(name, 16, rows));
      }
    }
  });
}

TEST(RowQuantiser, EveryScale) {
  // The largest element of a block takes every value; NaN and Inf are among them.
  on_every_target([] {
    for (const std::string& name : row_formats()) {
      for (const std::uint32_t low : {0U, 0x8001U}) {
        std::vector<float> rows;
        for (const float v : every_float(low)) {
          if (std::signbit(v)) continue;
          rows.insert(rows.end(), {v, v * .49F, v * -.25F, v * .08F, v * .66F, v * -1e-3F, v * .9F, 0.0F});
        }
        ASSERT_NO_FATAL_FAILURE(expect_same(name, 8, rows));
        if (takes_global(name)) {
          ASSERT_NO_FATAL_FAILURE(expect_same(name, 8, rows, 0.037F));
        }
      }
      if (!takes_global(name)) continue;
      ASSERT_NO_FATAL_FAILURE(expect_same(name, 16, every_float(0x4321U), 1e-30F));
      ASSERT_NO_FATAL_FAILURE(expect_same(name, 16, every_float(0x4321U), 1e30F));
    }
  });
}

TEST(RowQuantiser, EveryHeadDimension) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  on_every_target([&] {
    for (const std::string& name : row_formats()) {
      for (const std::int64_t d : {1, 2, 15, 16, 17, 33, 46, 64, 80, 96, 128, 192, 256, 300, 576, 1024}) {
        std::vector<float> x(static_cast<std::size_t>(4 * d));
        for (float& v : x) v = normal(rng) * std::exp2(std::round(4 * normal(rng)));
        std::fill_n(x.begin() + 2 * d, d / 2, 0.0F);                           // zero blocks
        x[static_cast<std::size_t>(3 * d + d / 2)] = bits_float(0xFFC00001U);  // a NaN with a payload
        x[static_cast<std::size_t>(3 * d + d - 1)] = -bits_float(formats::kFloatInf);
        ASSERT_NO_FATAL_FAILURE(expect_same(name, d, x));
      }
    }
  });
}

TEST(RowQuantiser, VectorsServeTheFormatsThatSpeedMattersFor) {
  for (const char* name : {"bf16", "fp8_e4m3", "int8", "int4", "mxfp4", "nvfp4", "nvfp4_4over6"}) {
    EXPECT_TRUE(formats::RowQuantiser(format(name), 128).vectorised()) << name;
  }
  EXPECT_FALSE(formats::RowQuantiser(format("lloyd4"), 128).vectorised());
}

}  // namespace
}  // namespace mpfa::test
