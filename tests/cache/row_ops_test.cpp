// Row operations in vectors against plain code, on every instruction set of the machine.
#include "cache/row_ops.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cache/convert.hpp"
#include "cache/hadamard.hpp"
#include "cache/rank_one.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kDims[] = {1, 2, 15, 16, 24, 46, 64, 80, 96, 128, 200, 256, 1024};

template <class Body>
void on_every_target(Body body) {
  for (auto rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    for (const std::int64_t d : kDims) body(d);
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = normal(rng) * std::exp2(std::round(3 * normal(rng)));
  return x;
}

rows::Row row_of(const std::vector<float>& x) {
  rows::Row row{};
  std::copy(x.begin(), x.end(), row.x);
  return row;
}

void expect_bits(const float* got, const float* want, std::int64_t n, const char* what) {
  EXPECT_EQ(std::memcmp(got, want, static_cast<std::size_t>(n) * sizeof(float)), 0) << what << " " << n;
}

TEST(RowOps, LoadReadsEveryBitPatternAndPadsWithZeros) {
  on_every_target([](std::int64_t d) {
    std::vector<std::uint16_t> bits(1 << 16);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i * 40503U);
    const std::vector<float> floats = random_floats(1 << 11, 3);
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      const TensorView view{t == DType::f32 ? static_cast<const void*>(floats.data()) : bits.data(), t};
      const std::int64_t n = t == DType::f32 ? 1 << 11 : 1 << 16;
      for (const std::int64_t stride : {1, 2}) {
        for (std::int64_t at = 0; at + d * stride <= n; at += d * stride) {
          rows::Row got;
          std::vector<float> want(static_cast<std::size_t>(d));
          std::fill_n(got.x, rows::kLongest, -1.0F);
          rows::load(view, at, stride, d, got.x);
          load_row(view.data, t, at, stride, d, want.data());
          expect_bits(got.x, want.data(), d, "load");
          for (std::int64_t i = d; i < formats::padded_row(d); ++i) EXPECT_EQ(got.x[i], 0.0F);
        }
      }
    }
  });
}

TEST(RowOps, HadamardHasTheBitsOfThePlainOne) {
  on_every_target([](std::int64_t d) {
    std::vector<float> x = random_floats(d, 4);
    rows::Row row = row_of(x);
    rows::hadamard(row.x, d);
    hadamard_rows(x.data(), 1, d, d);
    expect_bits(row.x, x.data(), d, "hadamard");
  });
}

TEST(RowOps, RankOneTermsAreSummedInOneOrder) {
  on_every_target([](std::int64_t d) {
    const std::vector<float> a = random_floats(5 * d, 6), k = random_floats(d, 7);
    const rows::Row row = row_of(k);
    float terms[5];
    rows::rank_one(a.data(), row.x, d, 5, terms);
    for (std::int64_t m = 0; m < 5; ++m) {
      const float want = rank_one_term(a.data() + m * d, k.data(), d);
      expect_bits(terms + m, &want, 1, "rank one");
      double exact = 0.0, size = 0.0;
      for (std::int64_t c = 0; c < d; ++c) {
        const double product = static_cast<double>(a[m * d + c]) * k[c];
        exact += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(terms[m], exact, 40 * 0x1p-24 * size);
    }
  });
  rows::Row row = row_of(std::vector<float>(64, 1.0F));
  row.x[5] = -std::nanf("7");
  float term = 0.0F;
  rows::rank_one(std::vector<float>(64, 1.0F).data(), row.x, 64, 1, &term);
  EXPECT_EQ(formats::float_bits(term), formats::kFloatNan);
}

TEST(RowOps, SumsCentringAndBf16) {
  on_every_target([](std::int64_t d) {
    std::vector<float> x = random_floats(d, 8);
    const std::vector<float> mean = random_floats(d, 9);
    x[0] = std::numeric_limits<float>::max();
    x[static_cast<std::size_t>(d - 1)] = -std::numeric_limits<float>::infinity();
    x[static_cast<std::size_t>(d / 2)] = std::nanf("");
    rows::Row row = row_of(x);
    std::vector<double> sum(static_cast<std::size_t>(d), .5);
    std::vector<std::int64_t> skipped(static_cast<std::size_t>(d), 1);
    rows::add_finite(row.x, d, sum.data(), skipped.data());
    std::vector<std::uint16_t> bf16(static_cast<std::size_t>(d));
    rows::to_bf16(row.x, d, bf16.data());
    rows::subtract(row.x, mean.data(), d);
    for (std::int64_t c = 0; c < d; ++c) {
      EXPECT_EQ(sum[c], .5 + (std::isfinite(x[c]) ? static_cast<double>(x[c]) : 0.0));
      EXPECT_EQ(skipped[c], std::isfinite(x[c]) ? 1 : 2);
      EXPECT_EQ(bf16[c], float_to_bf16(x[c]));
      const float want = x[c] - mean[c];
      if (!std::isnan(want)) expect_bits(row.x + c, &want, 1, "subtract");
    }
  });
}

}  // namespace
}  // namespace mpfa::test
