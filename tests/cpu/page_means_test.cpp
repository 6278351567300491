// v_mean=page on kernel and reference: the mean of a page comes back with the weight that P as rounded gives its keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cache/convert.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kPage = 16;

class PageMeans : public testing::TestWithParam<Implementation> {
 protected:
  [[nodiscard]] double tolerance() const { return GetParam().tolerance; }
  void run(Case& c) const { c.run(GetParam().attend); }
};

INSTANTIATE_TEST_SUITE_P(All, PageMeans, testing::ValuesIn(implementations()),
                         [](const auto& test) { return test.param.name; });

Tensor as_bf16(Tensor x) {
  for (float& v : x.data) v = bf16_to_float(float_to_bf16(v));
  return x;
}

/// V with a constant of its own in every channel of every page.
Tensor page_offsets(std::array<std::int64_t, 4> shape, float size, float noise) {
  Tensor v = gaussian(shape, 5);
  const Tensor offset = gaussian({1, shape[1] / kPage + 1, shape[2], shape[3]}, 6);
  const std::int64_t row = shape[2] * shape[3];
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(v.data.size()); ++i) {
    const std::int64_t page = i / row % shape[1] / kPage;
    v.data[i] = noise * v.data[i] + size * offset.data[page * row + i % row];
  }
  return as_bf16(std::move(v));
}

TEST_P(PageMeans, ConstantPagesComeBackWithTheRoundedWeights) {
  // V' is 0, so the output is the means alone: sum over pages of (P as rounded) * mean, over the exact denominator.
  constexpr std::int64_t n = 64;
  for (const std::int64_t rows : {1, 12, 20}) {
    Tensor k({1, n, 1, 1});
    for (std::int64_t j = 0; j < n; ++j) k.data[j] = static_cast<float>(j % 23) * 0.125F;
    const Tensor v = page_offsets({1, n, 1, 8}, 1.0F, 0.0F);
    Case c(Tensor({1, 1, rows, 1}, 1.0F), k, v, {"q=f32,k=f32,v=mxfp4,p=e4m3x256,v_mean=page", kPage, {}});
    c.problem.softmax_scale = 1.0F;
    run(c);
    double exact = 0.0, top = -1e9;
    for (const float x : k.data) top = std::max(top, static_cast<double>(x));
    std::vector<double> want(8, 0.0);
    for (std::int64_t j = 0; j < n; ++j) {
      const double p = std::exp(k.data[j] - top);
      exact += p;
      const int e = std::max(std::ilogb(p * 256.0), -6);
      const double rounded = std::nearbyint(std::ldexp(p * 256.0, 3 - e)) * std::ldexp(1.0, e - 3) / 256.0;
      for (std::int64_t i = 0; i < 8; ++i) want[i] += rounded * v.data[j * 8 + i];
    }
    for (std::int64_t i = 0; i < 8; ++i) EXPECT_NEAR(c.out[i], want[i] / exact, 2e-6) << rows << " rows, channel " << i;
  }
}

TEST_P(PageMeans, OutputIsThatOfTheTokensThemselves) {
  const std::vector<float> sinks{1.5F, -2.0F, 0.5F, 3.0F}, slopes{0.5F, 0.1F, 0.2F, 0.0F};
  for (const std::int64_t rows : {1, 3, 7, 40}) {
    const Tensor q = gaussian({2, rows, 4, 32}, 1), k = as_bf16(gaussian({2, 96, 2, 32}, 2)),
                 v = page_offsets({2, 96, 2, 24}, 3.0F, 1.0F);
    for (const char* extra : {"", ",rotate=qkv", ",centre=mean", ",sink=5,recent=9", ",order=reverse"}) {
      for (int options = 0; options < 3; ++options) {
        Case c(q, k, v, {std::string(kExactRecipe) + ",v_mean=page" + extra, kPage, {}});
        c.problem.causal = true;
        c.problem.sinks = options > 0;
        c.problem.softcap = options == 2 ? 20.0F : 0.0F;
        c.problem.window_left = options == 2 ? 37 : -1;
        c.problem.alibi = options == 1;
        c.tensors.sinks = options > 0 ? sinks.data() : nullptr;
        c.tensors.alibi_slopes = options == 1 ? slopes.data() : nullptr;
        run(c);
        std::vector<double> want, lse;
        ASSERT_TRUE(reference::exact(c.problem, c.tensors.q, k.view(), v.view(), c.tensors, want, lse).ok());
        // The last row of 96 reads packed keys only; others, and sinks, have bf16 tokens with P in bf16. Rotated or
        // centred copies are rounded to bf16.
        const bool tight = rows == 1 && (*extra == '\0' || std::string(extra) == ",order=reverse");
        EXPECT_LT(relative_l2(c.out, want), tight ? 1e-5 : 6e-3) << rows << extra << options;
        EXPECT_LT(max_difference(c.lse, lse), tight ? 1e-5 : 3e-2) << rows << extra << options;
      }
    }
  }
}

TEST_P(PageMeans, PagesOfAnySizeMeetTilesOfSixtyFour) {
  for (const std::int64_t page_size : {1, 3, 16, 48, 100}) {
    const Tensor q = gaussian({1, 1, 2, 16}, 1), k = as_bf16(gaussian({1, 300, 1, 16}, 2)),
                 v = page_offsets({1, 300, 1, 16}, 2.0F, 1.0F);
    Case c(q, k, v, {std::string(kExactRecipe) + ",v_mean=page", page_size, {}});
    run(c);
    std::vector<double> want, lse;
    ASSERT_TRUE(reference::exact(c.problem, c.tensors.q, k.view(), v.view(), c.tensors, want, lse).ok());
    EXPECT_LT(relative_l2(c.out, want), 3e-3) << page_size;
  }
}

TEST(PageMeansQuality, OffsetsOfAPageCostNoBits) {
  const Tensor q = gaussian({1, 1, 4, 64}, 1), k = gaussian({1, 512, 2, 64}, 2),
               v = page_offsets({1, 512, 2, 64}, 4.0F, 1.0F);
  const auto error = [&](const char* v_mean) {
    Case c(q, k, v, {std::string("q=f32,k=f32,v=mxfp4,p=f32,v_mean=") + v_mean, kPage, {}});
    c.run(attend_cpu);
    std::vector<double> want, lse;
    EXPECT_TRUE(reference::exact(c.problem, c.tensors.q, k.view(), v.view(), c.tensors, want, lse).ok());
    return relative_l2(c.out, want);
  };
  EXPECT_LT(error("page"), 0.5 * error("none"));
  EXPECT_LT(error("page"), 0.5 * error("mean"));
}

TEST(PageMeansChecks, ViewAndRecipeMustAgree) {
  using testing::HasSubstr;
  const Tensor q = gaussian({1, 1, 2, 16}, 1), kv = gaussian({1, 40, 1, 16}, 2);
  Case c(q, kv, kv, {"kv=mxfp4,v_mean=page", kPage, {}});
  const auto refusal = [&] { return attend_cpu(c.problem, c.tensors, c.out, c.lse).message(); };
  c.problem.recipe = recipe("kv=mxfp4,recent=1");
  EXPECT_THAT(refusal(), HasSubstr("the cache has means of V in its pages, recipe"));
  c.problem.recipe = recipe("kv=mxfp4,v_mean=page");
  c.tensors.cache.v_page_means = nullptr;
  EXPECT_THAT(refusal(), HasSubstr("cache.v_page_means is null"));
  c.problem.mask = MaskTensor::boolean;
  EXPECT_THAT(check_problem(c.problem).message(), HasSubstr("does not take a mask tensor"));
}

}  // namespace
}  // namespace mpfa::test
