// 12 to 128 query rows of a KV head: the kernels that take up to 64 or 128 of them in one pass, and several passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

class VerifyRows : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::int64_t kHeads = 8, kKvHeads = 2;
  /// Scales of heads for formats that have no others.
  static std::vector<float> global() {
    return std::string(GetParam()).find("static") != std::string::npos ? std::vector<float>{0.05F, 0.08F}
                                                                       : std::vector<float>();
  }
  static Case verify_case(std::int64_t sq, const Tensor& k, const Tensor& v, const std::vector<std::int64_t>& lengths,
                          std::int64_t page, const std::string& more = "") {
    return Case(gaussian({k.shape[0], sq, kHeads, 128}, 70), k, v, {GetParam() + more, page, lengths, global()});
  }
  /// All sequences have the same queries, so that the first one has the same mean in any batch.
  static Case alike_case(std::int64_t sq, const Tensor& k, const Tensor& v, const std::vector<std::int64_t>& lengths) {
    const Tensor one = gaussian({1, sq, kHeads, 128}, 70);
    Tensor q({k.shape[0], sq, kHeads, 128});
    for (std::size_t i = 0; i < q.data.size(); ++i) q.data[i] = one.data[i % one.data.size()];
    return Case(q, k, v, {GetParam(), 64, lengths, global()});
  }
};

TEST_P(VerifyRows, AgreeWithTheReference) {
  const std::vector<float> sinks{0.5F, -1.0F, 2.0F, 0.0F, 1.0F, -3.0F, 0.25F, 8.0F};
  const Tensor k = with_bias(heavy_tail({5, 300, kKvHeads, 128}, 71), 3, 20.0F);
  Tensor v = gaussian({5, 300, kKvHeads, 128}, 72);
  for (std::size_t i = 0; i < v.data.size(); ++i) v.data[i] *= std::exp2(static_cast<float>(i / 256 % 24) - 12.0F);
  for (const std::int64_t sq : {3, 5, 8, 16}) {
    for (const std::int64_t page : {16, 48, 64}) {
      Case c = verify_case(sq, k, v, {300, 0, 3, 65, 129}, page, ",centre=mean,v_mean=mean");
      c.problem.causal = true;
      expect_matches(c);
      c.problem.window_left = 40;
      c.problem.sinks = true;
      c.tensors.sinks = sinks.data();
      expect_matches(c);
      if (HasFailure()) FAIL() << sq << " queries, pages of " << page;
    }
  }
}

/// More outputs than multiprocessors, equally long or not: warpgroups are teams of their own.
TEST_P(VerifyRows, OfManySequencesAgreeWithTheReference) {
  for (const auto& [batch, sq] : {std::pair<std::int64_t, std::int64_t>{140, 8}, {70, 16}}) {
    const Tensor k = gaussian({batch, 80, kKvHeads, 128}, 73), v = gaussian(k.shape, 74);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), 80);
    for (const bool ragged : {false, true}) {
      for (std::size_t b = 0; ragged && b < lengths.size(); ++b) lengths[b] = static_cast<std::int64_t>(b) * 37 % 81;
      Case c = verify_case(sq, k, v, lengths, 64);
      c.problem.causal = true;
      expect_matches(c);
    }
  }
}

/// NaN and infinity in a token reach the rows that see it, by causality and by a window, and no other.
TEST_P(VerifyRows, BrokenTokensReachTheRowsThatSeeThem) {
  for (const auto& [in_k, value] : {std::pair{false, NAN}, {true, NAN}, {false, INFINITY}, {false, -INFINITY}}) {
    Tensor k = gaussian({2, 200, kKvHeads, 128}, 75), v = gaussian(k.shape, 76);
    Tensor& broken = in_k ? k : v;
    broken.at(0, 157, 0, 3) = broken.at(0, 196, 1, 40) = broken.at(0, 199, 0, 127) = broken.at(1, 85, 1, 64) = value;
    // 24, 64 and 128 rows; the latter in one block, as splits are fixed.
    for (const auto& [sq, heads] : {std::pair<std::int64_t, std::int64_t>{6, 8}, {16, 8}, {16, 16}}) {
      for (const std::int64_t window : {-1, 40}) {
        Case c(gaussian({2, sq, heads, 128}, 70), k, v, {GetParam(), 16, {200, 90}, global()});
        c.problem.causal = true;
        c.problem.batch_invariant = heads == 16;
        c.problem.window_left = window;
        expect_matches(c);
        if (HasFailure()) FAIL() << value << (in_k ? " in K, " : " in V, ") << sq << " queries, window " << window;
      }
    }
  }
}

TEST_P(VerifyRows, HaveTheSameBitsAloneAndInABatch) {
  const Tensor k = gaussian({3, 5000, kKvHeads, 128}, 77), v = gaussian(k.shape, 78);
  const auto first = [](const Tensor& x) {
    Tensor y({1, x.shape[1], x.shape[2], x.shape[3]});
    std::copy_n(x.data.begin(), y.data.size(), y.data.begin());
    return y;
  };
  for (const std::int64_t sq : {8, 16}) {
    Case all = alike_case(sq, k, v, {5000, 3000, 12}), one = alike_case(sq, first(k), first(v), {5000});
    DeviceCall batch(all), alone(one);
    for (DeviceCall* call : {&batch, &alone}) {
      call->problem().causal = call->problem().batch_invariant = true;
      ASSERT_TRUE(call->run().ok());
    }
    const std::vector<double> x = batch.out(), y = alone.out();
    EXPECT_TRUE(std::equal(y.begin(), y.end(), x.begin())) << sq << " queries";
  }
}

/// 96 rows: two row blocks, or of fixed splits one of 128 where there are such. V's scales grow from tile to tile.
TEST_P(VerifyRows, OfSeveralPassesAgreeWithTheReference) {
  const Tensor k = gaussian({2, 700, kKvHeads, 128}, 79);
  Tensor v = gaussian(k.shape, 80);
  for (std::size_t i = 0; i < v.data.size(); ++i) v.data[i] *= std::exp2(static_cast<float>(i / 256 % 700) / 24 - 14);
  for (const bool batch_invariant : {false, true}) {
    // Scales of groups of K go to another kernel when it is centred.
    const std::string recipe = GetParam() + std::string(batch_invariant ? ",centre=mean" : "");
    Case c(gaussian({2, 12, 16, 128}, 81), k, v, {recipe, 64, {700, 130}, global()});
    c.problem.causal = true;
    c.problem.batch_invariant = batch_invariant;
    expect_matches(c);
  }
}

/// Exponents of V's scales begin where those of the first tile are. 64 and 128 rows.
TEST(ManyRows, SmallValuesKeepTheirDigits) {
  const Tensor k = gaussian({1, 300, 2, 128}, 82);
  Tensor v = gaussian(k.shape, 83);
  for (float& x : v.data) x *= 0x1p-30F;
  for (const std::int64_t heads : {8, 16}) {
    Case c(gaussian({1, 16, heads, 128}, 84), k, v, {"kv=mxfp4,p=bf16", 64, {300}});
    c.problem.batch_invariant = true;
    expect_matches(c);
  }
}

INSTANTIATE_TEST_SUITE_P(, VerifyRows,
                         testing::Values("kv=mxfp4,p=bf16", "kv=nvfp4,p=bf16", "kv=mxfp4_f32,p=bf16", "kv=int4,p=bf16",
                                         "kv=int4_g64,p=bf16", "kv=fp8_e4m3,p=bf16", "kv=fp8_e4m3_static,p=bf16",
                                         "kv=int8,p=bf16", "kv=int8_g64,p=bf16", "kv=bf16,p=bf16", "fp8",
                                         "fp8,p=e4m3x448", "fp8,denominator=same_codes", "int8",
                                         "k=nvfp4,v=fp8_e4m3,p=bf16", "k=nvfp4,v=fp8_e4m3_static,p=bf16", "mpfa",
                                         "mpfa,q_centre=none,rank_one=off", "mpfa,denominator=same_codes",
                                         "mpfa,k=nvfp4_4over6,p=e4m3x256,rank_one=split"),
                         [](const auto& p) {
                           std::string name;
                           for (const char ch : std::string(p.param)) name += std::isalnum(ch) != 0 ? ch : '_';
                           return name;
                         });

/// 64 and 256 channels, of which the kernels take up to 64 and 32 rows in a pass; bf16 of 256 channels 64, from one on.
class VerifyHeadDim : public testing::TestWithParam<std::tuple<std::int64_t, const char*>> {
 protected:
  static constexpr std::int64_t kHeads = 16, kKvHeads = 2;
  static std::int64_t dim() { return std::get<0>(GetParam()); }
  static Case dim_case(std::int64_t sq, const Tensor& k, const Tensor& v, const std::vector<std::int64_t>& lengths,
                       const std::string& more = "") {
    return Case(gaussian({k.shape[0], sq, kHeads, dim()}, 90), k, v, {std::get<1>(GetParam()) + more, 16, lengths});
  }
};

TEST_P(VerifyHeadDim, AgreesWithTheReference) {
  for (const auto& [batch, keys] : {std::pair<std::int64_t, std::int64_t>{3, 500}, {70, 80}, {140, 80}}) {
    const Tensor k = with_bias(gaussian({batch, keys, kKvHeads, dim()}, 91), 3, 20.0F);
    Tensor v = gaussian({batch, keys, kKvHeads, dim()}, 92);
    // V's scales grow from tile to tile, and from chunk to chunk.
    for (std::size_t i = 0; i < v.data.size(); ++i) {
      v.data[i] *=
          std::exp2(static_cast<float>(i / (2 * v.shape[3]) % v.shape[1]) / 24 - static_cast<float>(i / 32 % 7));
    }
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch));
    for (std::size_t b = 0; b < lengths.size(); ++b) lengths[b] = keys - static_cast<std::int64_t>(b) * 37 % keys;
    for (const std::int64_t sq : {1, 2, 3, 8, 12}) {
      Case c = dim_case(sq, k, v, lengths, ",centre=mean,v_mean=mean");
      c.problem.causal = true;
      expect_matches(c);
      c.problem.batch_invariant = batch == 3;
      c.problem.window_left = 40;
      expect_matches(c);
      if (HasFailure()) FAIL() << sq << " queries, " << batch << " sequences";
    }
  }
}

/// In every half of every chunk of 32 channels.
TEST_P(VerifyHeadDim, BrokenTokensReachTheRowsThatSeeThem) {
  for (const auto& [in_k, value] : {std::pair{false, NAN}, {true, NAN}, {false, INFINITY}, {false, -INFINITY}}) {
    for (std::int64_t channel = 5; channel < dim(); channel += 16) {
      Tensor k = gaussian({2, 200, kKvHeads, dim()}, 93), v = gaussian(k.shape, 94);
      Tensor& broken = in_k ? k : v;
      broken.at(0, 199, 0, channel) = broken.at(0, 198, 1, channel) = broken.at(1, 88, 1, channel) = value;
      for (const std::int64_t sq : {2, 4, 8}) {
        Case c = dim_case(sq, k, v, {200, 90});
        c.problem.causal = true;
        expect_matches(c);
        if (HasFailure()) FAIL() << value << (in_k ? " in K, " : " in V, ") << "channel " << channel << ", " << sq;
      }
      if (in_k) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, VerifyHeadDim,
                         testing::Combine(testing::Values<std::int64_t>(64, 256),
                                          testing::Values("kv=mxfp4,p=bf16", "kv=nvfp4,p=bf16", "kv=fp8_e4m3,p=bf16",
                                                          "kv=bf16,p=bf16", "k=nvfp4,v=fp8_e4m3,p=bf16",
                                                          "kv=int8,p=bf16", "kv=int4,p=bf16", "kv=int4_g32,p=bf16",
                                                          "kv=int4_g64,p=bf16", "k=int4_g128,v=int4,p=bf16",
                                                          "kv=mxfp4_f32,p=bf16", "kv=mxfp4_f32_b64,p=bf16")),
                         [](const auto& p) {
                           std::string name = std::to_string(std::get<0>(p.param));
                           for (const char ch : std::string(std::get<1>(p.param))) {
                             name += std::isalnum(ch) != 0 ? ch : '_';
                           }
                           return name;
                         });

/// Rank-one terms of groups whose rows have them in the same columns, and of one for the decode kernel.
TEST(VerifyTerms, OfEveryGroupAgreeWithTheReference) {
  for (const char* recipe : {"mpfa", "mpfa,rank_one=split"}) {
    for (const std::int64_t group : {2, 3, 4, 8}) {
      Case c(with_bias(gaussian({3, 16, 2 * group, 128}, 82), 7, 5.0F), gaussian({3, 500, 2, 128}, 83),
             gaussian({3, 500, 2, 128}, 84), {recipe, 16, {500, 17, 64}});
      c.problem.causal = true;
      expect_matches(c);
      if (testing::Test::HasFailure()) FAIL() << recipe << ", group " << group;
    }
  }
}

}  // namespace
}  // namespace mpfa::test
