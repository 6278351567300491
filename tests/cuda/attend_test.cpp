// attend() on device memory against the float64 reference on the host: the same cache, byte for byte, on both.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

std::string name_of(const testing::TestParamInfo<const char*>& p) {
  std::string name;
  for (const char ch : std::string(p.param)) name += std::isalnum(ch) != 0 ? ch : '_';
  return name;
}

class Recipes : public testing::TestWithParam<const char*> {};

/// Scales of heads for formats that have no others.
std::vector<float> global_of(const std::string& recipe) {
  return recipe.find("static") == std::string::npos ? std::vector<float>() : std::vector<float>{0.05F, 0.08F};
}

TEST_P(Recipes, DecodeAsTheReference) {
  for (const std::int64_t d : {64, 128}) {
    for (const std::int64_t page : {16, 64}) {
      const Tensor k = with_bias(heavy_tail({3, 200, 2, d}, 1), 3, 20.0F);
      Case c(gaussian({3, 1, 8, d}, 2), k, gaussian({3, 200, 2, d}, 3),
             {GetParam(), page, {200, 0, 77}, global_of(GetParam())});
      expect_matches(c);
    }
  }
}

TEST_P(Recipes, VerifyStepWithWindowSinksAndSoftcap) {
  const std::vector<float> sinks{0.5F, -1.0F, 2.0F, 0.0F};
  Case c(gaussian({2, 5, 4, 128}, 4), gaussian({2, 150, 2, 128}, 5), gaussian({2, 150, 2, 128}, 6),
         {GetParam(), 32, {150, 90}, global_of(GetParam())});
  c.problem.causal = true;
  c.problem.window_left = 60;
  c.problem.softcap = 20.0F;
  c.problem.sinks = true;
  c.tensors.sinks = sinks.data();
  expect_matches(c);
}

/// 160 outputs and 280, equally long or ragged: the warps of a block are two or four teams.
TEST_P(Recipes, MoreOutputsThanMultiprocessors) {
  for (const std::int64_t batch : {80, 140}) {
    for (const bool ragged : {false, true}) {
      std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), 90);
      for (std::size_t b = 0; ragged && b < lengths.size(); ++b) lengths[b] = b * 37 % 91;
      Case c(gaussian({batch, 1, 8, 64}, 11), gaussian({batch, 90, 2, 64}, 12), gaussian({batch, 90, 2, 64}, 13),
             {GetParam(), 32, lengths, global_of(GetParam())});
      expect_matches(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Recipes,
                         testing::Values("mxfp4", "mxfp4_ocp", "kv=mxfp4_ceil,p=bf16", "nvfp4", "nvfp4_4over6", "bf16",
                                         "int4", "kv=int4,p=bf16,centre=mean", "kv=int4_g32,p=bf16",
                                         "kv=int4_g128,p=bf16", "kv=int8,p=bf16", "kv=int8_g64,p=bf16",
                                         "kv=fp8_e4m3,p=bf16", "kv=fp8_e4m3_static,p=bf16", "kv=mxfp4_f32,p=bf16",
                                         "kv=mxfp4_f32_b64,p=bf16", "mpfa,q=bf16,p=bf16,q_centre=none,rank_one=off",
                                         "k=nvfp4_4over6,v=fp8_e4m3_static,p=bf16,v_mean=mean", "mpfa", "mpfa,p=bf16",
                                         "mpfa,p=bf16,rank_one=split", "mpfa,p=bf16,rank_one=off",
                                         "mpfa_static,centre=mean,q_centre=mean",
                                         "mpfa,q_centre=none,rank_one=off,p=bf16", "fp8", "fp8,p=bf16",
                                         "fp8,denominator=same_codes", "int8"),
                         name_of);

class WideTokens : public testing::TestWithParam<const char*> {};

TEST_P(WideTokens, DecodeAsTheReference) {
  for (const std::int64_t d : {64, 128, 256}) {
    const Tensor k = with_sink_token(heavy_tail({5, 300, 2, d}, 1), 2.0F);
    Case c(gaussian({5, 1, 8, d}, 2), k, gaussian({5, 300, 2, d}, 3), {GetParam(), 64, {300, 0, 3, 65, 192}});
    expect_matches(c);
  }
}

TEST_P(WideTokens, EveryRowHasItsOwnLimit) {
  for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{20}, std::int64_t{90}}) {
    Case c(gaussian({3, 9, 4, 128}, 4), with_bias(gaussian({3, 700, 2, 128}, 5), 3, 9.0F),
           gaussian({3, 700, 2, 128}, 6), {GetParam(), 16, {700, 70, 5}});
    c.problem.causal = true;
    c.problem.window_left = window;
    expect_matches(c);
    c.problem.softcap = 20.0F;
    expect_matches(c);
  }
}

TEST_P(WideTokens, LongSequencesInManyPieces) {
  Case c(gaussian({1, 2, 8, 128}, 7), gaussian({1, 9000, 2, 128}, 8), gaussian({1, 9000, 2, 128}, 9),
         {GetParam(), 64, {}});
  c.problem.causal = true;
  expect_matches(c);
}

TEST_P(WideTokens, MoreOutputsThanMultiprocessors) {
  std::vector<std::int64_t> lengths(140);
  for (std::size_t b = 0; b < lengths.size(); ++b) lengths[b] = b * 37 % 131;
  Case c(gaussian({140, 1, 8, 64}, 14), gaussian({140, 130, 2, 64}, 15), gaussian({140, 130, 2, 64}, 16),
         {GetParam(), 32, lengths});
  expect_matches(c);
}

INSTANTIATE_TEST_SUITE_P(, WideTokens,
                         testing::Values("mxfp4,sink=16", "mxfp4,recent=32", "nvfp4,recent=page",
                                         "mxfp4,sink=4,recent=33,centre=mean,v_mean=mean",
                                         "kv=fp8_e4m3,p=bf16,sink=5,recent=7", "kv=bf16,p=bf16,recent=9",
                                         "mxfp4,phase_switch=on", "nvfp4,v_mean=page"),
                         name_of);

/// seal() packs a part of every sequence; what comes later is packed as it leaves `recent`.
TEST(PhaseSwitch, BeforeAndAfterTheSeal) {
  const Tensor k = gaussian({3, 400, 2, 128}, 11), v = gaussian({3, 400, 2, 128}, 12);
  for (const char* recipe : {"mxfp4,phase_switch=on", "kv=int4_g64,p=bf16,phase_switch=on,sink=4,recent=40",
                             "mxattention,p=bf16,logit_cap=0"}) {
    Case c(gaussian({3, 1, 8, 128}, 10), k, v, {recipe, 64, {400, 0, 70}});
    expect_matches(c);
    ASSERT_TRUE(c.cache.seal().ok());
    c.tensors.cache = c.cache.view();
    expect_matches(c);
  }
}

/// Means of full pages: far from zero beside V, near zero, and with nothing left beside them.
class PageMeans : public testing::TestWithParam<const char*> {};

TEST_P(PageMeans, DecodeAsTheReference) {
  for (const auto& [mean, size] : {std::pair{2.0F, 1.0F}, {1e3F, 1.0F}, {0.0F, 1e-6F}, {1e12F, 1e10F}, {-3.0F, 0.0F}}) {
    for (const std::int64_t page : {64, 16, 24, 5}) {
      Tensor v = gaussian({3, 300, 2, 128}, 13);
      for (std::size_t i = 0; i < v.data.size(); ++i) {
        v.data[i] = v.data[i] * size + mean * (1.0F + 0.25F * static_cast<float>(i % 7));
      }
      Case c(gaussian({3, 3, 12, 128}, 14), with_bias(gaussian({3, 300, 2, 128}, 15), 3, 9.0F), v,
             {std::string("kv=") + GetParam() + ",p=bf16,centre=mean,v_mean=page", page, {300, 0, 77}});
      c.problem.causal = true;
      expect_matches(c);
      if (HasFailure()) FAIL() << "mean " << mean << ", values " << size << ", page " << page;
    }
  }
}

TEST_P(PageMeans, OfPagesThatWindowsCut) {
  const std::vector<float> sinks{0.5F, -1.0F, 2.0F, 0.0F};
  Tensor v = gaussian({2, 500, 2, 128}, 16);
  for (float& x : v.data) x += 5.0F;
  Case c(gaussian({2, 9, 4, 128}, 17), gaussian({2, 500, 2, 128}, 18), v,
         {std::string("kv=") + GetParam() + ",p=bf16,v_mean=page,sink=3,recent=10", 32, {500, 130}});
  c.problem.causal = c.problem.sinks = true;
  c.problem.window_left = 100;
  c.problem.softcap = 20.0F;
  c.tensors.sinks = sinks.data();
  expect_matches(c);
}

INSTANTIATE_TEST_SUITE_P(, PageMeans,
                         testing::Values("mxfp4", "nvfp4", "mxfp4_f32", "int4", "int4_g32", "int8", "int8_g128",
                                         "fp8_e4m3", "bf16"),
                         [](const auto& p) { return std::string(p.param); });

class ShortWindows : public testing::TestWithParam<const char*> {};

/// Calls that decode/direct.cuh takes: what rows do not see may be anything, also beside what they see.
TEST_P(ShortWindows, HideBrokenTokensBeforeThem) {
  for (const std::int64_t sq : {1, 2}) {
    for (const std::int64_t window : {0, 40, 127}) {
      Tensor k = gaussian({3, 200, 2, 128}, 18), v = gaussian(k.shape, 19);
      k.at(0, 198 - window, 0, 3) = v.at(0, 198 - window, 1, 40) = NAN;  // row 0 of two sees it
      v.at(1, 197 - window, 0, 127) = INFINITY;
      k.at(2, 100 - window / 2, 1, 5) = NAN;
      for (const std::int64_t page : {16, 64}) {
        Case c(gaussian({3, sq, 8, 128}, 20), k, v, {GetParam(), page, {200, 200, 190}, global_of(GetParam())});
        c.problem.causal = true;
        c.problem.window_left = window;
        c.tensors.cache.sequences = nullptr;
        expect_matches(c);
        if (HasFailure()) FAIL() << sq << " queries, window " << window << ", pages of " << page;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ShortWindows,
                         testing::Values("mxfp4,centre=none", "nvfp4,centre=none", "kv=mxfp4_f32,p=bf16",
                                         "kv=fp8_e4m3,p=bf16", "kv=int8,p=bf16", "bf16"),
                         name_of);

TEST(BatchInvariant, ARowHasTheSameBitsAloneAndInABatch) {
  const Tensor q = gaussian({3, 1, 8, 128}, 7), k = gaussian({3, 5000, 2, 128}, 8), v = gaussian({3, 5000, 2, 128}, 9);
  Case all(q, k, v, {"mxfp4", 64, {5000, 3000, 12}});
  DeviceCall batch(all);
  batch.problem().batch_invariant = true;
  ASSERT_TRUE(batch.run().ok());
  const auto first = [](const Tensor& x) {
    Tensor y({1, x.shape[1], x.shape[2], x.shape[3]});
    std::copy_n(x.data.begin(), y.data.size(), y.data.begin());
    return y;
  };
  Case one(first(q), first(k), first(v), {"mxfp4", 64, {5000}});
  DeviceCall alone(one);
  alone.problem().batch_invariant = true;
  ASSERT_TRUE(alone.run().ok());
  const std::vector<double> x = batch.out(), y = alone.out();
  EXPECT_TRUE(std::equal(y.begin(), y.end(), x.begin()));
}

TEST(BadInput, IsNamed) {
  Case c(gaussian({1, 1, 4, 128}, 1), gaussian({1, 64, 2, 128}, 2), gaussian({1, 64, 2, 128}, 3), {"mxfp4", 64, {}});
  DeviceCall call(c);
  call.problem().recipe = recipe("fp8_loglin");
  EXPECT_NE(call.run().message().find("use p=bf16, or p=e4m3"), std::string::npos);
  call.problem().recipe = recipe("kv=fp8_e4m3,q=fp8_e5m2,p=bf16");
  EXPECT_NE(call.run().message().find("Q is fp8_e5m2; use q=bf16"), std::string::npos);
  call.problem().recipe = recipe("kv=fp8_e5m2,p=bf16");
  EXPECT_NE(call.run().message().find("K is fp8_e5m2 and V is fp8_e5m2; both must be"), std::string::npos);
  call.problem().recipe = recipe("fp8,sink=4");
  EXPECT_NE(call.run().message().find("keeps tokens in 16 bits, Q is fp8_e4m3 and P is rounded"), std::string::npos);
  call.problem().recipe = recipe("mxfp4");
  call.tensors().q.data = static_cast<const std::byte*>(call.tensors().q.data) + 2;
  EXPECT_NE(call.run().message().find("multiples of 16 bytes"), std::string::npos);
}

}  // namespace
}  // namespace mpfa::test
