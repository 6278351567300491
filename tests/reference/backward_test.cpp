#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

/// A full-sequence call with every tensor and option the backward takes.
struct Call {
  Tensor q, k, v, d_out;
  AttentionProblem problem;
  AttentionTensors extras;

  Call(std::array<std::int64_t, 4> q_shape, std::array<std::int64_t, 4> k_shape, std::int64_t dv,
       const std::string& text = kExactRecipe)
      : q(gaussian(q_shape, 11)),
        k(gaussian(k_shape, 12)),
        v(gaussian({k_shape[0], k_shape[1], k_shape[2], dv}, 13)),
        d_out(gaussian({q_shape[0], q_shape[1], q_shape[2], dv}, 14)) {
    problem.recipe = recipe(text);
    problem.batch = k_shape[0];
    problem.max_q = q_shape[1];
    problem.max_kv = k_shape[1];
    problem.q_heads = q_shape[2];
    problem.kv_heads = k_shape[2];
    problem.head_dim = q_shape[3];
    problem.head_dim_v = dv;
  }

  [[nodiscard]] reference::Gradients gradients(reference::Precision precision = reference::Precision::f64) const {
    reference::Gradients g;
    const Status s = reference::backward(problem, q.view(), k.view(), v.view(), d_out.view(), extras, precision, g);
    EXPECT_TRUE(s.ok()) << s.message();
    return g;
  }
};

using Doubles = std::vector<double>;
Doubles widen(const Tensor& x) {
  return {x.data.begin(), x.data.end()};
}

/// sum(dO o exact(q, k, v)) with float64 inputs.
double loss(const Call& c, const Doubles& q, const Doubles& k, const Doubles& v, const float* sinks) {
  AttentionTensors extras = c.extras;
  extras.sinks = sinks;
  Doubles out;
  Doubles lse;
  const auto view = [](const Doubles& x, const Tensor& like) {
    return contiguous(static_cast<const void*>(x.data()), DType::f64, like.shape);
  };
  const Status s = reference::exact(c.problem, view(q, c.q), view(k, c.k), view(v, c.v), extras, out, lse);
  EXPECT_TRUE(s.ok()) << s.message();
  double sum = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * c.d_out.data[i];
  return sum;
}

/// Every gradient entry against a central difference.
void expect_matches_differences(const Call& c) {
  constexpr double h = 1e-5;
  constexpr double tolerance = 2e-8;
  const reference::Gradients g = c.gradients();
  Doubles x[3] = {widen(c.q), widen(c.k), widen(c.v)};
  const Doubles* got[3] = {&g.dq, &g.dk, &g.dv};
  for (int operand = 0; operand < 3; ++operand) {
    for (std::size_t i = 0; i < x[operand].size(); ++i) {
      const double at = x[operand][i];
      x[operand][i] = at + h;
      const double up = loss(c, x[0], x[1], x[2], c.extras.sinks);
      x[operand][i] = at - h;
      const double down = loss(c, x[0], x[1], x[2], c.extras.sinks);
      x[operand][i] = at;
      ASSERT_NEAR((*got[operand])[i], (up - down) / (2.0 * h), tolerance) << "qkv"[operand] << " " << i;
    }
  }
}

TEST(Backward, MatchesDifferencesOfExactAttention) {
  expect_matches_differences(Call({2, 3, 4, 6}, {2, 5, 2, 6}, 4));
}

TEST(Backward, MatchesDifferencesWithCausalWindowAndMoreQueriesThanKeys) {
  Call c({1, 6, 2, 4}, {1, 4, 1, 4}, 4);
  c.problem.causal = true;
  c.problem.window_left = 1;
  expect_matches_differences(c);
}

TEST(Backward, MatchesDifferencesWithSoftcapAlibiSinksAndMask) {
  const std::vector<float> sinks{0.5F, -1.0F};
  const std::vector<float> slopes{0.5F, 0.125F};
  std::vector<float> mask(3 * 5);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 4 == 1 ? -INFINITY : static_cast<float>(i) * 0.125F;
  Call c({1, 3, 2, 4}, {1, 5, 1, 4}, 4);
  c.problem.softcap = 1.5F;
  c.problem.sinks = c.problem.alibi = true;
  c.problem.mask = MaskTensor::additive;
  c.extras.sinks = sinks.data();
  c.extras.alibi_slopes = slopes.data();
  c.extras.mask = contiguous(static_cast<const void*>(mask.data()), DType::f32, {1, 1, 3, 5});
  expect_matches_differences(c);
}

TEST(Backward, InputsOfThreeTimesTheSizeStayFiniteInBothPrecisions) {
  for (const std::int64_t n : {1, 150}) {
    for (const std::int64_t d : {16, 128}) {
      Call c({1, n, 2, d}, {1, n, 1, d}, d);
      c.problem.causal = true;
      for (Tensor* x : {&c.q, &c.k, &c.v}) {
        for (float& value : x->data) value *= 3.0F;
      }
      const reference::Gradients exact = c.gradients(), single = c.gradients(reference::Precision::f32);
      for (const auto& [got, want] :
           {std::pair{&single.dq, &exact.dq}, {&single.dk, &exact.dk}, {&single.dv, &exact.dv}}) {
        for (const double g : *got) ASSERT_TRUE(std::isfinite(g));
        double size = 1.0;
        for (const double g : *want) size = std::max(size, std::abs(g));
        EXPECT_LE(max_difference(*got, *want), 1e-4 * size) << n << " x " << d;
      }
      // Of one key the softmax is 1: no gradient of its logit.
      if (n > 1) continue;
      EXPECT_LE(max_difference(exact.dq, Doubles(exact.dq.size(), 0.0)), 1e-9);
    }
  }
}

TEST(Backward, SinkGradientIsMinusItsWeightTimesDelta) {
  std::vector<float> sinks{0.5F, -1.0F};
  Call c({2, 3, 2, 4}, {2, 5, 1, 4}, 4);
  c.problem.sinks = true;
  c.extras.sinks = sinks.data();
  const reference::Gradients g = c.gradients();
  constexpr float h = 0x1p-10F;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    std::vector<float> moved = sinks;
    moved[i] = sinks[i] + h;
    const double up = loss(c, widen(c.q), widen(c.k), widen(c.v), moved.data());
    moved[i] = sinks[i] - h;
    const double down = loss(c, widen(c.q), widen(c.k), widen(c.v), moved.data());
    EXPECT_NEAR(g.dsinks[i], (up - down) / (2.0 * h), 1e-6);
  }
}

TEST(Backward, RowsWithoutKeysGiveExactlyZeroWhateverTheirGradientHolds) {
  const std::vector<std::int64_t> cu{0, 5, 6};
  const std::vector<std::int64_t> lengths{2, 1};
  for (const char* text : {kExactRecipe, "direct_p_fast", "attn_qat", "full_stack_fp4"}) {
    Call c({1, 6, 2, 32}, {2, 3, 1, 32}, 32, text);
    c.problem.causal = true;
    c.extras.cu_seqlens_q = cu.data();
    c.extras.cache.lengths = lengths.data();
    for (std::int64_t i = 0; i < 3; ++i) std::fill_n(&c.d_out.at(0, i, 0, 0), 2 * 32, NAN);
    std::fill_n(&c.k.at(0, 2, 0, 0), 32, NAN);  // past the lengths
    std::fill_n(&c.v.at(1, 1, 0, 0), 2 * 32, NAN);
    const reference::Gradients g = c.gradients();
    for (std::size_t i = 0; i < 3 * 2 * 32; ++i) ASSERT_EQ(g.dq[i], 0.0) << text;
    for (const Doubles* x : {&g.dq, &g.dk, &g.dv}) {
      for (const double value : *x) ASSERT_TRUE(std::isfinite(value)) << text;
    }
    for (std::size_t i = 2 * 32; i < 3 * 32; ++i) ASSERT_EQ(g.dk[i], 0.0) << text;
  }
}

TEST(Backward, SegmentsWithoutQueriesGiveExactlyZeroKeyGradients) {
  const std::vector<std::int64_t> cu{0, 0, 3, 3};
  Call c({1, 3, 1, 8}, {3, 4, 1, 8}, 8);
  c.extras.cu_seqlens_q = cu.data();
  const reference::Gradients g = c.gradients();
  for (std::size_t i = 0; i < g.dk.size(); ++i) {
    const bool has_queries = i / 32 == 1;
    ASSERT_EQ(g.dk[i] != 0.0, has_queries);
    ASSERT_EQ(g.dv[i] != 0.0, has_queries);
  }
}

TEST(Backward, MeansAreConstants) {
  // Centring and rotation change operands, not the function: the gradients stay those of exact attention.
  for (const char* extra : {",centre=mean", ",centre=mean,q_centre=mean,rank_one=split", ",q_centre=block",
                            ",rotate=qkv,v_mean=mean", ",centre=mean,q_centre=block,rotate=qk"}) {
    const std::vector<float> sinks{0.5F, -1.0F};
    Call plain({1, 6, 2, 16}, {1, 9, 1, 16}, 16);
    plain.k = with_bias(plain.k, 3, 30.0F);
    plain.problem.sinks = true;
    plain.extras.sinks = sinks.data();
    Call centred = plain;
    centred.problem.recipe = recipe(std::string(kExactRecipe) + extra);
    const reference::Gradients a = plain.gradients();
    const reference::Gradients b = centred.gradients();
    EXPECT_LT(relative_l2(b.dq, a.dq), 2e-5) << extra;
    EXPECT_LT(relative_l2(b.dk, a.dk), 2e-5) << extra;
    EXPECT_LT(relative_l2(b.dv, a.dv), 2e-5) << extra;
  }
}

TEST(Backward, RulesStayNearTheExactGradient) {
  struct Bound {
    const char* recipe;
    double dq, dk, dv;
  };
  // About 1.2 times what this input gives: per tensor, because an aggregate would hide a broken dQ.
  for (const Bound& b :
       {Bound{"bf16", .004, .004, .0025}, Bound{"nvfp4", .18, .14, .11}, Bound{"direct_p_fast", .19, .19, .16},
        Bound{"attn_qat", .20, .19, .18}, Bound{"full_stack_fp4", .20, .20, .14}}) {
    Call exact({1, 80, 2, 64}, {1, 80, 1, 64}, 64);
    exact.problem.causal = true;
    Call c = exact;
    c.problem.recipe = recipe(b.recipe);
    const reference::Gradients want = exact.gradients();
    for (const auto precision : {reference::Precision::f64, reference::Precision::f32}) {
      const reference::Gradients got = c.gradients(precision);
      const double dq = relative_l2(got.dq, want.dq);
      const double dk = relative_l2(got.dk, want.dk);
      const double dv = relative_l2(got.dv, want.dv);
      EXPECT_LT(dq, b.dq) << b.recipe;
      EXPECT_LT(dk, b.dk) << b.recipe;
      EXPECT_LT(dv, b.dv) << b.recipe;
    }
  }
}

TEST(Backward, RefusesWhatItDoesNotCover) {
  Call c({1, 3, 1, 16}, {1, 3, 1, 16}, 16, "k=int8,v=int8,v_residual=on,p=f32,q=f32");
  reference::Gradients g;
  Status s = reference::backward(c.problem, c.q.view(), c.k.view(), c.v.view(), c.d_out.view(), c.extras,
                                 reference::Precision::f64, g);
  EXPECT_EQ(s.code(), StatusCode::unsupported);
  EXPECT_NE(s.message().find("v_residual=off"), std::string::npos);
  c.problem.recipe = recipe("mpfa_static");
  s = reference::backward(c.problem, c.q.view(), c.k.view(), c.v.view(), c.d_out.view(), c.extras,
                          reference::Precision::f64, g);
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_NE(s.message().find("calibrated means"), std::string::npos);
}

}  // namespace
}  // namespace mpfa::test
