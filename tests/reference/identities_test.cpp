// Identities that centring, rotation, sinks and merging must satisfy exactly, in float64 on numbers that float32 holds
// exactly: multiples of 1/4 over 16 tokens and 16 channels, so that means, differences and rotations have no rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

constexpr double kTight = 1e-12;
constexpr std::int64_t kTokens = 16;
constexpr std::int64_t kDim = 16;

Tensor quarters(std::array<std::int64_t, 4> shape, unsigned seed) {
  Tensor x(shape);
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int> steps(-8, 8);
  for (float& v : x.data) v = static_cast<float>(steps(rng)) / 4.0F;
  return x;
}

struct Given {
  Tensor q = quarters({1, kTokens, 4, kDim}, 1);
  Tensor k = quarters({1, kTokens, 2, kDim}, 2);
  Tensor v = quarters({1, kTokens, 2, kDim}, 3);
};

/// The recipe's output and LSE against exact attention over the same numbers.
void expect_exact(const std::string& extra, const std::function<void(Case&)>& change) {
  const Given x;
  Case c(x.q, x.k, x.v, {std::string(kExactRecipe) + extra, 4, {}});
  c.problem.softmax_scale = 0.25F;
  change(c);
  c.run(reference_fn(reference::Precision::f64));
  std::vector<double> out;
  std::vector<double> lse;
  const Status s = reference::exact(c.problem, x.q.view(), x.k.view(), x.v.view(), c.tensors, out, lse);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_LT(max_difference(c.out, out), kTight) << extra;
  EXPECT_LT(max_difference(c.lse, lse), kTight) << extra;
}

class Identity : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Recipes, Identity,
                         testing::Values("", ",order=reverse", ",centre=mean", ",v_mean=mean",
                                         ",centre=mean,q_centre=mean,rank_one=split", ",q_centre=block", ",rotate=qk",
                                         ",rotate=qkv,v_mean=mean",
                                         ",centre=mean,q_centre=mean,rank_one=split,rotate=qkv,v_mean=mean",
                                         ",centre=mean,q_centre=block,rotate=qk"));

TEST_P(Identity, PlainCall) {
  expect_exact(GetParam(), [](Case&) {});
}

TEST_P(Identity, CausalWindow) {
  expect_exact(GetParam(), [](Case& c) {
    c.problem.causal = true;
    c.problem.window_left = 5;
  });
}

TEST_P(Identity, SoftcapNeedsTheTrueLogit) {
  expect_exact(GetParam(), [](Case& c) { c.problem.softcap = 2.0F; });
}

TEST_P(Identity, SinkNeedsTheTrueLogit) {
  const std::vector<float> sinks{1.0F, -2.0F, 0.5F, 3.0F};
  expect_exact(GetParam(), [&](Case& c) {
    c.problem.sinks = true;
    c.tensors.sinks = sinks.data();
  });
}

TEST_P(Identity, AlibiAndMask) {
  const std::vector<float> slopes{0.5F, 0.25F, 0.125F, 1.0F};
  std::vector<float> mask(kTokens * kTokens, 0.0F);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 ? -INFINITY : static_cast<float>(i % 5) * 0.5F;
  std::fill_n(mask.begin(), kTokens, -INFINITY);  // row 0 is empty
  expect_exact(GetParam(), [&](Case& c) {
    c.problem.alibi = true;
    c.tensors.alibi_slopes = slopes.data();
    c.problem.mask = MaskTensor::additive;
    c.tensors.mask = contiguous(static_cast<const void*>(mask.data()), DType::f32, {1, 1, kTokens, kTokens});
  });
}

TEST(RankOne, LeavingItOutChangesTheScores) {
  const Given x;
  std::vector<std::vector<double>> out;
  for (const char* term : {"split", "off"}) {
    Case c(x.q, x.k, x.v, {std::string(kExactRecipe) + ",centre=mean,q_centre=mean,rank_one=" + term, 4, {}});
    c.run(reference_fn(reference::Precision::f64));
    out.push_back(c.out);
  }
  EXPECT_GT(max_difference(out[0], out[1]), 1e-2);
}

TEST(OnlineSoftmax, ManyTilesInEitherOrderEqualOneSoftmax) {
  const Tensor q = gaussian({1, 2, 2, 32}, 21);
  const Tensor k = with_sink_token(gaussian({1, 333, 1, 32}, 22), 1.0F);
  const Tensor v = heavy_tail({1, 333, 1, 32}, 23);
  for (const char* order : {"forward", "reverse"}) {
    Case c(q, k, v, {std::string(kExactRecipe) + ",order=" + order, 64, {}});
    c.problem.window_left = 300;
    c.run(reference_fn(reference::Precision::f64));
    std::vector<double> out;
    std::vector<double> lse;
    ASSERT_TRUE(reference::exact(c.problem, q.view(), k.view(), v.view(), c.tensors, out, lse).ok());
    EXPECT_LT(max_difference(c.out, out), kTight) << order;
    EXPECT_LT(max_difference(c.lse, lse), kTight) << order;
  }
}

TEST(OnlineSoftmax, SixteenBitTokensKeepTheDenominatorExact) {
  // Quarters are exact in bf16, so only P is rounded, and only where it meets V.
  const Given x;
  for (const char* wide : {",sink=3", ",recent=5", ",sink=2,recent=4", ",phase_switch=on"}) {
    Case c(x.q, x.k, x.v, {std::string(kExactRecipe) + wide, 4, {}});
    c.problem.causal = true;
    c.run(reference_fn(reference::Precision::f64));
    std::vector<double> out;
    std::vector<double> lse;
    ASSERT_TRUE(reference::exact(c.problem, x.q.view(), x.k.view(), x.v.view(), c.tensors, out, lse).ok());
    EXPECT_LT(max_difference(c.lse, lse), kTight) << wide;
    EXPECT_LT(max_difference(c.out, out), 6e-3) << wide;
    EXPECT_GT(max_difference(c.out, out), 1e-6) << wide;
  }
}

TEST(Exact, EqualsATextbookSoftmax) {
  const Given x;
  Case c(x.q, x.k, x.v, {});
  c.problem.causal = true;
  c.problem.softmax_scale = 0.25F;
  std::vector<double> out;
  std::vector<double> lse;
  ASSERT_TRUE(reference::exact(c.problem, x.q.view(), x.k.view(), x.v.view(), c.tensors, out, lse).ok());
  Given y = x;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t h = 0; h < 4; ++h) {
      double sum = 0.0;
      std::vector<double> o(kDim, 0.0);
      for (std::int64_t j = 0; j <= i; ++j) {
        double dot = 0.0;
        for (std::int64_t d = 0; d < kDim; ++d) dot += static_cast<double>(y.q.at(0, i, h, d)) * y.k.at(0, j, h / 2, d);
        const double w = std::exp(0.25 * dot);  // no maximum taken out: the logits are small
        sum += w;
        for (std::int64_t d = 0; d < kDim; ++d) o[d] += w * y.v.at(0, j, h / 2, d);
      }
      EXPECT_NEAR(lse[i * 4 + h], std::log(sum), kTight);
      for (std::int64_t d = 0; d < kDim; ++d) EXPECT_NEAR(out[(i * 4 + h) * kDim + d], o[d] / sum, kTight);
    }
  }
}

TEST(Merge, TrueLsesOfTwoCachesGiveTheWhole) {
  // Each half is centred by its own mean, so only restored LSEs can weigh them.
  const Given x;
  const auto part = [](const Tensor& t, std::int64_t from, std::int64_t count) {
    Tensor p({1, count, t.shape[2], t.shape[3]});
    const std::int64_t row = t.shape[2] * t.shape[3];
    std::copy_n(t.data.begin() + from * row, count * row, p.data.begin());
    return p;
  };
  const auto attend = [&](std::int64_t from, std::int64_t count, const std::string& recipe_text) {
    auto c =
        std::make_unique<Case>(x.q, part(x.k, from, count), part(x.v, from, count), Case::Options{recipe_text, 4, {}});
    c->run(reference_fn(reference::Precision::f64));
    return c;
  };
  const std::string centred = std::string(kExactRecipe) + ",centre=mean";
  const auto whole = attend(0, 16, kExactRecipe);
  const auto a = attend(0, 8, centred);
  const auto b = attend(8, 8, centred);
  for (std::size_t r = 0; r < whole->lse.size(); ++r) {
    const double top = std::max(a->lse[r], b->lse[r]);
    const double wa = std::exp(a->lse[r] - top);
    const double wb = std::exp(b->lse[r] - top);
    EXPECT_NEAR(whole->lse[r], top + std::log(wa + wb), kTight);
    for (std::size_t c = r * kDim; c < (r + 1) * kDim; ++c) {
      EXPECT_NEAR(whole->out[c], (wa * a->out[c] + wb * b->out[c]) / (wa + wb), kTight);
    }
  }
}

TEST(Reference, SingleAndDoublePrecisionAgreeOnEveryRecipe) {
  const Tensor q = gaussian({1, 9, 2, 64}, 5);
  const Tensor k = with_bias(heavy_tail({1, 130, 1, 64}, 6), 7, 30.0F);
  const Tensor v = gaussian({1, 130, 1, 64}, 7);
  for (const std::string& name : recipe_names()) {
    if (recipe(name).centre == Centre::fixed) continue;
    Case c(q, k, v, {name, 64, {}});
    c.run(reference_fn(reference::Precision::f64));
    const std::vector<double> wide = c.out;
    c.run(reference_fn(reference::Precision::f32));
    EXPECT_LT(relative_l2(c.out, wide), 0.03) << name;
  }
}

}  // namespace
}  // namespace mpfa::test
