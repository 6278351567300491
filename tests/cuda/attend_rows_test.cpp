// Query rows and heads on the card: cases whose right value is known without a reference, for every group size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

class Rows : public testing::TestWithParam<const char*> {
 protected:
  static std::string format() { return GetParam(); }
};

/// V of KV head h is 6 * 2^h, which both formats hold exactly.
TEST_P(Rows, EveryGroupReadsItsOwnHead) {
  for (const std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 48, 64}) {
    for (const std::int64_t sq : {1, 3}) {
      Tensor v({1, 70, 2, 64}, 6.0F);
      for (std::int64_t t = 0; t < 70; ++t) {
        for (std::int64_t c = 0; c < 64; ++c) v.at(0, t, 1, c) = 12.0F;
      }
      Case c(gaussian({1, sq, 2 * group, 64}, 1), gaussian({1, 70, 2, 64}, 2), v, {format(), 32, {}});
      DeviceCall call(c);
      ASSERT_TRUE(call.run().ok());
      const std::vector<double> out = call.out();
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::int64_t head = static_cast<std::int64_t>(i) / 64 % (2 * group);
        ASSERT_EQ(out[i], head / group == 0 ? 6.0 : 12.0) << "group " << group << ", head " << head << ", sq " << sq;
      }
    }
  }
}

/// The kernel for many rows has 32 bits for the place of a page, in units that divide the strides.
TEST_P(Rows, PagesOutOfReachAreRefused) {
  const Tensor k = gaussian({1, 100, 2, 128}, 2);
  Case c(gaussian({1, 5, 8, 128}, 1), k, gaussian(k.shape, 3), {format(), 16, {}});
  DeviceCall call(c);
  ASSERT_TRUE(call.prepare().ok());
  CacheView& cache = call.tensors().cache;
  cache.num_pages = 65, cache.k.data_page_stride = (std::int64_t{1} << 30) + 16;
  const Status s = call.enqueue(nullptr);
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_THAT(std::string(s.message()), testing::HasSubstr("make them multiples of 256"));
}

/// Up to 8 rows of 256 channels, which the verify kernel may have, go to the decode kernel then.
TEST_P(Rows, FewReachPagesAtAnyDistance) {
  const Tensor k = gaussian({1, 16, 2, 256}, 2);
  Case c(gaussian({1, 1, 16, 256}, 1), k, gaussian(k.shape, 3), {format(), 16, {}});
  DeviceCall near(c), far(c);
  ASSERT_TRUE(near.run().ok());
  CacheView& cache = far.tensors().cache;
  cache.num_pages = 65, cache.k.data_page_stride = (std::int64_t{1} << 30) + 16;
  const Status s = far.run();
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_LE(relative_l2(far.out(), near.out()), kTolerance);
}

/// As on the host: a row of NaN scores is none without keys, which a merge would drop. Other rows are as they were.
TEST_P(Rows, AQueryOfNanGivesNanToItsRowOnly) {
  for (const std::int64_t keys : {1, 100, 3000}) {
    for (const std::int64_t sq : {1, 5}) {  // 4 and 20 rows of a KV head
      if (keys < sq) continue;
      Tensor q = gaussian({1, sq, 4, 128}, 1);
      Case c(q, gaussian({1, keys, 1, 128}, 2), gaussian({1, keys, 1, 128}, 3), {format(), 64, {}});
      DeviceCall whole(c);
      ASSERT_TRUE(whole.run().ok());
      const std::vector<double> out = whole.out(), lse = whole.lse();
      for (std::int64_t i = 0; i < 128; ++i) q.at(0, sq - 1, 2, i) = NAN;
      Case broken(q, gaussian({1, keys, 1, 128}, 2), gaussian({1, keys, 1, 128}, 3), {format(), 64, {}});
      DeviceCall call(broken);
      ASSERT_TRUE(call.run().ok());
      const std::vector<double> other = call.out(), other_lse = call.lse();
      for (std::size_t i = 0; i < out.size(); ++i) {
        const bool is_nan = i / 128 == static_cast<std::size_t>((sq - 1) * 4 + 2);
        ASSERT_TRUE(is_nan ? std::isnan(other[i]) : std::abs(other[i] - out[i]) < 1e-3)
            << keys << " " << sq << " " << i;
      }
      for (std::size_t i = 0; i < lse.size(); ++i) {
        const bool is_nan = i == static_cast<std::size_t>((sq - 1) * 4 + 2);
        ASSERT_TRUE(is_nan ? std::isnan(other_lse[i]) : std::abs(other_lse[i] - lse[i]) < 1e-3) << keys << " " << sq;
      }
    }
  }
}

TEST_P(Rows, UniformWeightsGiveTheMeanAndTheLogarithm) {
  for (const std::int64_t page : {1, 16, 64}) {
    const std::vector<std::int64_t> lengths{1, 31, 32, 33, 257, 1000, 4097};
    const auto batch = static_cast<std::int64_t>(lengths.size());
    Case c(Tensor({batch, 1, 4, 128}), gaussian({batch, 4097, 1, 128}, 3), Tensor({batch, 4097, 1, 128}, 6.0F),
           {format(), page, lengths});
    DeviceCall call(c);
    ASSERT_TRUE(call.run().ok());
    for (const double x : call.out()) ASSERT_EQ(x, 6.0);
    const std::vector<double> lse = call.lse();
    for (std::size_t i = 0; i < lse.size(); ++i)
      EXPECT_NEAR(lse[i], std::log(static_cast<double>(lengths[i / 4])), 1e-5);
  }
}

/// V of token j is one-hot: the output lists the weights in the order of the tokens.
Tensor one_hot(std::int64_t tokens, std::int64_t d) {
  Tensor v({1, tokens, 1, d});
  for (std::int64_t j = 0; j < tokens; ++j) v.at(0, j, 0, j % d) = 6.0F;
  return v;
}

TEST_P(Rows, WeightsAreInTheOrderOfTheTokens) {
  Case c(gaussian({1, 9, 4, 128}, 4), gaussian({1, 128, 1, 128}, 5), one_hot(128, 128), {format(), 16, {}});
  c.problem.causal = true;
  expect_matches(c);
}

TEST_P(Rows, WindowsHaveExactlyTheirKeys) {
  for (const std::int64_t window : {1, 3, 33, 64, 200}) {
    Case c(Tensor({1, 16, 2, 128}), gaussian({1, 100, 1, 128}, 6), one_hot(100, 128), {format(), 64, {}});
    c.problem.causal = true;
    c.problem.window_left = window - 1;
    DeviceCall call(c);
    ASSERT_TRUE(call.run().ok());
    const std::vector<double> out = call.out();
    for (std::int64_t i = 0; i < 16; ++i) {
      const std::int64_t last = 100 - 16 + i, first = std::max<std::int64_t>(0, last - window + 1);
      for (std::int64_t j = 0; j < 128; ++j) {
        const bool seen = j >= first && j <= last;
        EXPECT_EQ(out[i * 2 * 128 + j] > 0.0, seen) << "window " << window << ", row " << i << ", key " << j;
      }
    }
  }
}

/// Five rows over two keys, causal: three rows are empty, then 1 and 2 in units of 6.
TEST_P(Rows, AreAlignedToTheLastKey) {
  Tensor v({1, 2, 1, 64}, 6.0F);
  for (std::int64_t c = 0; c < 64; ++c) v.at(0, 1, 0, c) = 12.0F;
  Case c(Tensor({1, 5, 1, 64}), gaussian({1, 2, 1, 64}, 7), v, {format(), 16, {}});
  c.problem.causal = true;
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  const std::vector<double> expected{0.0, 0.0, 0.0, 6.0, 9.0}, out = call.out(), lse = call.lse();
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(out[i * 64], expected[i]);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(lse[i], kMinusInf);
  EXPECT_NEAR(lse[3], 0.0, 1e-6);
  EXPECT_NEAR(lse[4], std::log(2.0), 1e-6);
}

/// Row r of a verify step is a decode step with r more keys.
TEST_P(Rows, OfAVerifyStepAreSingleSteps) {
  constexpr std::int64_t kKeys = 300;
  for (const std::int64_t sq : {2, 5, 8, 16}) {
    const Tensor q = gaussian({1, sq, 6, 128}, 8), k = gaussian({1, kKeys, 2, 128}, 9), v = gaussian(k.shape, 10);
    Case step(q, k, v, {format(), 64, {}});
    step.problem.causal = true;
    DeviceCall call(step);
    ASSERT_TRUE(call.run().ok());
    const std::vector<double> out = call.out();
    for (std::int64_t r = 0; r < sq; r += 3) {
      Tensor one({1, 1, 6, 128});
      std::copy_n(q.data.begin() + r * 6 * 128, 6 * 128, one.data.begin());
      Case single(one, k, v, {format(), 64, {}});
      const std::vector<std::int64_t> length{kKeys - sq + 1 + r};
      single.tensors.cache.lengths = length.data();
      DeviceCall alone(single);
      ASSERT_TRUE(alone.run().ok());
      const std::vector<double> expected = alone.out();
      const std::vector<double> row(out.begin() + r * 6 * 128, out.begin() + (r + 1) * 6 * 128);
      EXPECT_LE(relative_l2(row, expected), kTolerance) << "row " << r << " of " << sq;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Rows, testing::Values("mxfp4", "nvfp4"), [](const auto& p) { return std::string(p.param); });

/// 32 rows a block: blocks that are full, nearly empty, and several of them.
TEST(ManyRows, AgreeWithTheReference) {
  struct Shape {
    std::int64_t sq, heads, kv_heads, d;
  };
  for (const Shape& s : {Shape{5, 4, 1, 64}, Shape{16, 2, 1, 128}, Shape{11, 6, 2, 128}, Shape{16, 16, 2, 128},
                         Shape{9, 4, 1, 256}, Shape{1, 48, 1, 128}}) {
    for (const char* format :
         {"mxfp4", "nvfp4", "int4", "bf16", "kv=int8,p=bf16", "kv=fp8_e4m3,p=bf16", "mpfa,p=bf16"}) {
      for (const std::int64_t page : {24, 64}) {
        Case c(gaussian({2, s.sq, s.heads, s.d}, 11), gaussian({2, 400, s.kv_heads, s.d}, 12),
               gaussian({2, 400, s.kv_heads, s.d}, 13), {format, page, {400, 130}});
        c.problem.causal = true;
        expect_matches(c);
      }
    }
  }
}

}  // namespace
}  // namespace mpfa::test
