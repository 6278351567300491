// Inputs with answers in closed form, on the reference in both precisions and on the kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

class Closed : public testing::TestWithParam<Implementation> {
 protected:
  [[nodiscard]] double tolerance() const { return GetParam().tolerance; }
  void run(Case& c) const { c.run(GetParam().attend); }
};

INSTANTIATE_TEST_SUITE_P(All, Closed, testing::ValuesIn(implementations()),
                         [](const auto& test) { return test.param.name; });

/// v[j] = e_j, so that a row's output is its row of P.
Tensor one_hot(std::int64_t n, std::int64_t d) {
  Tensor v({1, n, 1, d});
  for (std::int64_t j = 0; j < n; ++j) v.at(0, j, 0, j) = 1.0F;
  return v;
}

TEST_P(Closed, CausalMaskIsBottomRightAlignedAndLeadingRowsAreEmpty) {
  for (const std::int64_t page_size : {1, 16}) {
    Tensor v({1, 2, 1, 1});
    v.data = {1.0F, 3.0F};
    Case c(Tensor({1, 5, 1, 4}), Tensor({1, 2, 1, 4}), v, {kExactRecipe, page_size, {}});
    c.problem.causal = true;
    run(c);
    EXPECT_EQ(std::vector<double>(c.out.begin(), c.out.begin() + 3), std::vector<double>(3, 0.0));
    EXPECT_EQ(std::vector<double>(c.lse.begin(), c.lse.begin() + 3), std::vector<double>(3, kMinusInf));
    EXPECT_NEAR(c.out[3], 1.0, tolerance());
    EXPECT_NEAR(c.out[4], 2.0, tolerance());
    EXPECT_NEAR(c.lse[3], 0.0, tolerance());
    EXPECT_NEAR(c.lse[4], std::log(2.0), tolerance());
  }
}

TEST_P(Closed, UniformLogitsGiveTheMeanAndTheLogOfTheLength) {
  for (const std::int64_t page_size : {1, 16, 64}) {
    for (const std::int64_t n : {1, 15, 16, 17, 63, 64, 65, 257}) {
      Case c(Tensor({1, 1, 2, 16}), gaussian({1, n, 1, 16}, 1), Tensor({1, n, 1, 16}, 1.0F),
             {kExactRecipe, page_size, {}});
      run(c);
      EXPECT_NEAR(c.out_at(0, 1, 3), 1.0, tolerance()) << n;
      EXPECT_NEAR(c.lse_at(0, 1), std::log(static_cast<double>(n)), tolerance()) << n;
    }
  }
}

TEST_P(Closed, OneHotValuesListTheWeightsInTokenOrder) {
  constexpr std::int64_t n = 70;
  Tensor k({1, n, 1, 1});
  for (std::int64_t j = 0; j < n; ++j) k.data[j] = static_cast<float>(j % 7) * 0.25F;
  Case c(Tensor({1, 1, 1, 1}, 1.0F), k, one_hot(n, n), {kExactRecipe, 16, {}});
  c.problem.softmax_scale = 1.0F;
  run(c);
  double sum = 0.0;
  for (const float x : k.data) sum += std::exp(static_cast<double>(x));
  for (std::int64_t j = 0; j < n; ++j) EXPECT_NEAR(c.out[j], std::exp(k.data[j]) / sum, tolerance()) << j;
}

TEST_P(Closed, WindowOfWKeysHasExactlyThoseKeys) {
  constexpr std::int64_t n = 16;
  for (const std::int64_t w : {1, 4, 16, 40}) {
    Case c(Tensor({1, n, 1, 2}), Tensor({1, n, 1, 2}), one_hot(n, n), {kExactRecipe, 4, {}});
    c.problem.causal = true;
    c.problem.window_left = w - 1;
    run(c);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t count = std::min(i + 1, w);
      for (std::int64_t j = 0; j < n; ++j) {
        const bool seen = j <= i && j > i - w;
        EXPECT_NEAR(c.out_at(i, 0, j), seen ? 1.0 / static_cast<double>(count) : 0.0, seen ? tolerance() : 0.0);
      }
    }
  }
}

TEST_P(Closed, WindowWithAPastSeesTheKeysBeforeEachRow) {
  Case c(Tensor({1, 3, 1, 2}), Tensor({1, 9, 1, 2}), one_hot(9, 9), {kExactRecipe, 4, {}});
  c.problem.causal = true;
  c.problem.window_left = 3;
  run(c);
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 9; ++j) {
      EXPECT_NEAR(c.out_at(i, 0, j), j >= i + 3 && j <= i + 6 ? 0.25 : 0.0, tolerance());
    }
  }
}

TEST_P(Closed, SinkTakesItsShareOfTheDenominatorOnce) {
  const std::vector<float> sinks{1.5F};
  Case c(Tensor({1, 1, 1, 4}), Tensor({1, 8, 1, 4}), Tensor({1, 8, 1, 4}, 1.0F), {});
  c.problem.sinks = true;
  c.tensors.sinks = sinks.data();
  run(c);
  EXPECT_NEAR(c.out[0], 0.640939, 1e-6);
  EXPECT_NEAR(c.lse[0], std::log(8.0 + std::exp(1.5)), tolerance());
  c.problem.softcap = 30.0F;
  run(c);
  EXPECT_NEAR(c.out[0], 0.640939, 1e-6);
}

TEST_P(Closed, SinkAloneGivesZeroOutputAndItselfAsLse) {
  const std::vector<float> sinks{1.5F};
  Case c(Tensor({1, 2, 1, 4}), Tensor({1, 4, 1, 4}), Tensor({1, 4, 1, 4}, 1.0F), {kExactRecipe, 16, {0}});
  c.problem.sinks = true;
  c.tensors.sinks = sinks.data();
  run(c);
  EXPECT_EQ(c.out, std::vector<double>(8, 0.0));
  EXPECT_EQ(c.lse, std::vector<double>(2, 1.5));
}

TEST_P(Closed, SinkShrinksTheMeanOfValuesToo) {
  // v_mean returns after the softmax; a sink must shrink it like everything else.
  const std::vector<float> sinks{1.5F};
  Case c(Tensor({1, 1, 1, 4}), Tensor({1, 8, 1, 4}), Tensor({1, 8, 1, 4}, 1.0F),
         {std::string(kExactRecipe) + ",v_mean=mean,centre=mean", 16, {}});
  c.problem.sinks = true;
  c.tensors.sinks = sinks.data();
  run(c);
  EXPECT_NEAR(c.out[0], 0.640939, 1e-6);
}

TEST_P(Closed, EveryQueryHeadReadsItsKvHead) {
  for (const std::int64_t ratio : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 48, 64}) {
    Tensor v({1, 20, 2, 2});
    for (std::size_t i = 0; i < v.data.size(); ++i) v.data[i] = static_cast<float>(i / 2 % 2 + 1);
    Case c(gaussian({1, 3, 2 * ratio, 4}, 2), gaussian({1, 20, 2, 4}, 3), v, {});
    run(c);
    for (std::int64_t h = 0; h < 2 * ratio; ++h) {
      const std::int64_t kv_head = h / ratio;
      EXPECT_NEAR(c.out_at(2, h, 1), static_cast<double>(kv_head + 1), tolerance());
    }
  }
}

TEST_P(Closed, SoftcapComesBeforeTheMask) {
  Tensor v({1, 4, 1, 1}, 1.0F);
  v.data[3] = 1e6F;
  Case c(Tensor({1, 4, 1, 2}), Tensor({1, 4, 1, 2}), v, {});
  c.problem.causal = true;
  c.problem.softcap = 1.0F;
  run(c);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_NEAR(c.out[i], 1.0, tolerance());
}

TEST_P(Closed, BooleanAndAdditiveMasksSelect) {
  Tensor v({1, 4, 1, 1});
  v.data = {1.0F, 2.0F, 3.0F, std::nanf("")};
  const std::vector<std::uint8_t> keep{1, 0, 1, 0, 0, 0, 0, 0};
  std::vector<float> bias(8, -INFINITY);
  bias[0] = std::log(3.0F);
  bias[2] = 0.0F;
  Case c(Tensor({1, 2, 1, 2}), Tensor({1, 4, 1, 2}), v, {});
  c.problem.mask = MaskTensor::boolean;
  c.tensors.mask = contiguous(keep.data(), DType::u8, {1, 1, 2, 4});
  run(c);
  EXPECT_NEAR(c.out[0], 2.0, tolerance());
  EXPECT_EQ(c.out[1], 0.0);
  EXPECT_EQ(c.lse[1], kMinusInf);
  c.problem.mask = MaskTensor::additive;
  c.tensors.mask = contiguous(static_cast<const void*>(bias.data()), DType::f32, {1, 1, 2, 4});
  run(c);
  const double weight = std::exp(static_cast<double>(bias[0]));
  EXPECT_NEAR(c.out[0], (weight + 3.0) / (weight + 1.0), tolerance());
  EXPECT_EQ(c.out[1], 0.0);
}

TEST_P(Closed, AlibiIsSlopeTimesDistance) {
  const std::vector<float> slopes{0.5F, 0.25F};
  Case c(Tensor({1, 1, 2, 2}), Tensor({1, 3, 1, 2}), one_hot(3, 3), {});
  c.problem.alibi = true;
  c.tensors.alibi_slopes = slopes.data();
  run(c);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t j = 0; j < 3; ++j) {
      const auto weight = [&](std::int64_t n) { return std::exp(-slopes[h] * static_cast<double>(2 - n)); };
      EXPECT_NEAR(c.out_at(0, h, j), weight(j) / (weight(0) + weight(1) + weight(2)), tolerance());
    }
  }
}

TEST_P(Closed, RaggedRowsFollowCuSeqlens) {
  const std::vector<std::int64_t> cu{0, 0, 3, 3};
  Tensor v({3, 5, 1, 1});
  for (std::size_t i = 0; i < v.data.size(); ++i) v.data[i] = static_cast<float>(i);
  Case c(Tensor({1, 3, 1, 2}), Tensor({3, 5, 1, 2}), v, {kExactRecipe, 16, {2, 2, 5}});
  c.problem.max_q = 3;
  c.problem.causal = true;
  c.tensors.cu_seqlens_q = cu.data();
  run(c);
  EXPECT_EQ(c.out[0], 0.0);
  EXPECT_EQ(c.lse[0], kMinusInf);
  EXPECT_NEAR(c.out[1], 5.0, tolerance());
  EXPECT_NEAR(c.out[2], 5.5, tolerance());
}

}  // namespace
}  // namespace mpfa::test
