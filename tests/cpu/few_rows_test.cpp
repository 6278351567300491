// Decode with NaN and Inf among the values: they reach the rows that see them, and no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kKeys = 100, kRows = 3, kDim = 64;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Causal attention of the last kRows positions, [kRows, kDim], with `value` in channel 5 of the last token of V.
std::vector<double> attend_with(const Implementation& implementation, const std::string& text, float value) {
  Tensor k = gaussian({1, kKeys, 1, kDim}, 1);
  Tensor v = gaussian({1, kKeys, 1, kDim}, 2);
  const Tensor q = gaussian({1, kRows, 1, kDim}, 3);
  v.at(0, kKeys - 1, 0, 5) = value;
  CacheConfig c;
  c.recipe = recipe(text);
  c.num_pages = 4;
  c.page_size = 32;
  c.head_dim = c.head_dim_v = kDim;
  PagedCache cache = PagedCache::create(c).value();
  EXPECT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
  AttentionProblem p;
  p.recipe = c.recipe;
  p.max_q = kRows;
  p.max_kv = kKeys;
  p.head_dim = p.head_dim_v = kDim;
  p.page_size = c.page_size;
  p.causal = true;
  AttentionTensors t;
  t.q = q.view();
  t.cache = cache.view();
  std::vector<double> out, lse;
  const Status s = implementation.attend(p, t, out, lse);
  EXPECT_TRUE(s.ok()) << s.message();
  return out;
}

TEST(FewRows, BrokenValuesReachOnlyTheRowsThatSeeThem) {
  for (const Implementation& implementation : implementations()) {
    for (const char* text : {"bf16", "fp8", "fp8,order=reverse", "k=fp16,v=fp16", "k=int8,v=int4_asym",
                             "q=f32,k=f32,v=f32,p=f32", "nvfp4,centre=none"}) {
      SCOPED_TRACE(implementation.name + " " + text);
      const std::vector<double> healthy = attend_with(implementation, text, 0.0F);
      for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
        const std::vector<double> broken = attend_with(implementation, text, value);
        // A tile with a broken value is summed with weights in 32 bits instead of 16.
        for (std::int64_t i = 0; i < (kRows - 1) * kDim; ++i) ASSERT_NEAR(broken[i], healthy[i], 5e-5) << i;
        EXPECT_FALSE(std::isfinite(broken[(kRows - 1) * kDim + 5]));
      }
    }
  }
}

TEST(FewRows, AQueryOfNanIsNoRowWithoutKeys) {
  for (const char* recipe : {"bf16", "fp8", "mxfp4", "mxfp4,p=f32", "mpfa", "mxattention_uos", "fp8_loglin"}) {
    for (const std::int64_t keys : {1, 100, 9000}) {  // one split and several
      for (const std::int64_t rows : {1, 20}) {
        if (keys < rows) continue;
        Tensor q = gaussian({1, rows, 4, 64}, 1);
        std::fill(q.data.begin(), q.data.end(), NAN);
        Case c(q, gaussian({1, keys, 2, 64}, 2), gaussian({1, keys, 2, 64}, 3), {recipe, 64, {}});
        c.run(attend_cpu);
        const auto is_nan = [](double x) { return std::isnan(x); };
        EXPECT_TRUE(std::all_of(c.out.begin(), c.out.end(), is_nan)) << recipe << " " << keys << " " << rows;
        EXPECT_TRUE(std::all_of(c.lse.begin(), c.lse.end(), is_nan)) << recipe << " " << keys << " " << rows;
      }
    }
  }
}

TEST(FewRows, ConstantValuesComeBackOverManyKeys) {
  for (const std::int64_t keys : {63, 64, 5000}) {
    for (const char* text : {"mxfp4", "nvfp4", "int4", "nvfp4,denominator=same_codes"}) {
      for (const std::int64_t page : {16, 48, 64}) {
        Case c(gaussian({1, 1, 4, 64}, 1), gaussian({1, keys, 1, 64}, 2), Tensor({1, keys, 1, 64}, 6.0F),
               {text, page, {}});
        c.run(attend_cpu);
        for (const double x : c.out) ASSERT_NEAR(x, 6.0, 6e-3) << text << " " << keys << " keys, pages of " << page;
      }
    }
  }
}

TEST(FewRows, OutliersAgreeWithTheReference) {
  for (const char* text : {"mxfp4,centre=none", "nvfp4,centre=none", "int4,centre=none"}) {
    for (const std::int64_t page : {16, 64}) {
      Tensor q = gaussian({1, 2, 4, 128}, 1), k = gaussian({1, 700, 1, 128}, 2), v = gaussian({1, 700, 1, 128}, 3);
      for (std::int64_t j = 0; j < 700; ++j) {
        k.at(0, j, 0, 7) += 300.0F;                         // a constant that every score shares
        v.at(0, j, 0, 40) *= j % 50 == 0 ? 1000.0F : 1.0F;  // heavy tails
      }
      for (std::int64_t h = 0; h < 4; ++h) q.at(0, 0, h, 30) = 100.0F;
      Case c(q, k, v, {text, page, {}});
      c.run(reference_fn(reference::Precision::f64));
      const std::vector<double> want = c.out;
      c.run(attend_cpu);
      EXPECT_LE(relative_l2(c.out, want), 2e-3) << text << " pages of " << page;
    }
  }
}

}  // namespace
}  // namespace mpfa::test
