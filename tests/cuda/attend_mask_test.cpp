// Mask tensors and ALiBi on the card: the rules of the CPU, for one to 16 query rows, and what hidden keys may hold.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

struct MaskCase {
  const char* recipe;
  std::int64_t sq, q_heads, kv_heads, page;
  std::array<std::int64_t, 2> shape;  // batch and heads of the mask
  bool transposed = false;
};

/// A tree of drafts over a prefix that every row sees: row i sees its ancestors among the last sq keys and itself.
bool tree_sees(std::int64_t i, std::int64_t key, std::int64_t sq, std::int64_t length) {
  const std::int64_t node = key - (length - sq);
  if (node < 0) return true;
  for (std::int64_t at = i;; at = (at - 1) / 2) {
    if (at == node) return true;
    if (at == 0) return false;
  }
}

class Masks : public testing::TestWithParam<MaskCase> {
 protected:
  static constexpr std::int64_t kKeys = 150;
  Case make() const {
    const MaskCase& m = GetParam();
    return {gaussian({2, m.sq, m.q_heads, 128}, 11),
            with_bias(gaussian({2, kKeys, m.kv_heads, 128}, 12), 5, 30.0F),
            gaussian({2, kKeys, m.kv_heads, 128}, 13),
            {m.recipe, m.page, {kKeys, 77}}};
  }
  /// View of `data` that holds one T for every (batch, head, row, key).
  template <class T>
  TensorView view(const std::vector<T>& data) const {
    const MaskCase& m = GetParam();
    TensorView v =
        contiguous(data.data(), sizeof(T) == 1 ? DType::u8 : DType::f32, {m.shape[0], m.shape[1], m.sq, kKeys});
    if (m.transposed) v.stride = {m.shape[1] * m.sq * kKeys, m.sq * kKeys, 1, m.sq};
    return v;
  }
  std::size_t size() const {
    const MaskCase& m = GetParam();
    return static_cast<std::size_t>(m.shape[0] * m.shape[1] * m.sq * kKeys);
  }
};

TEST_P(Masks, BooleanAsTheReference) {
  Case c = make();
  std::vector<std::uint8_t> mask(size());
  std::mt19937 rng(1);
  for (std::uint8_t& x : mask) x = rng() % 3 == 0 ? 0 : static_cast<std::uint8_t>(1 + rng() % 255);
  c.problem.mask = MaskTensor::boolean;
  c.tensors.mask = view(mask);
  c.problem.causal = true;
  expect_matches(c);
}

TEST_P(Masks, TreeOverThePrefixAndARowWithoutKeys) {
  Case c = make();
  const MaskCase& m = GetParam();
  std::vector<std::uint8_t> mask(size());
  const TensorView v = view(mask);
  for (std::int64_t b = 0; b < m.shape[0]; ++b) {
    for (std::int64_t h = 0; h < m.shape[1]; ++h) {
      for (std::int64_t i = 0; i < m.sq; ++i) {
        for (std::int64_t j = 0; j < kKeys; ++j) {
          const bool sees = h == 0 && i == m.sq - 1 ? false : tree_sees(i, j, m.sq, b == 0 ? kKeys : 77);
          mask[b * v.stride[0] + h * v.stride[1] + i * v.stride[2] + j * v.stride[3]] = sees ? 1 : 0;
        }
      }
    }
  }
  c.problem.mask = MaskTensor::boolean;
  c.tensors.mask = v;
  expect_matches(c);
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  const std::vector<double> lse = call.lse(), out = call.out();
  const std::size_t row = static_cast<std::size_t>((m.sq - 1) * m.q_heads);
  EXPECT_EQ(lse[row], kMinusInf);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(out[row * 128 + i], 0.0);
}

TEST_P(Masks, AdditiveWithSinksSoftcapAndAlibi) {
  Case c = make();
  const MaskCase& m = GetParam();
  std::vector<float> mask(size()), sinks(m.q_heads), slopes(m.q_heads);
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& x : mask) x = rng() % 4 == 0 ? kHidden : normal(rng);
  const TensorView v = view(mask);
  for (std::int64_t j = 0; j < kKeys; ++j) mask[j * v.stride[3]] = kHidden;  // row 0 of head 0: LSE is the sink
  for (std::int64_t h = 0; h < m.q_heads; ++h) {
    sinks[h] = normal(rng);
    slopes[h] = std::exp2(-static_cast<float>(h + 1));
  }
  c.problem.mask = MaskTensor::additive, c.problem.sinks = c.problem.alibi = true;
  c.problem.softcap = 20.0F;
  c.tensors.mask = v, c.tensors.sinks = sinks.data(), c.tensors.alibi_slopes = slopes.data();
  expect_matches(c);
}

INSTANTIATE_TEST_SUITE_P(
    , Masks,
    testing::Values(MaskCase{"mxfp4", 1, 8, 2, 64, {1, 1}}, MaskCase{"nvfp4", 1, 6, 2, 16, {2, 6}},
                    MaskCase{"mxfp4", 16, 4, 2, 64, {1, 4}}, MaskCase{"nvfp4", 16, 8, 2, 32, {2, 1}},
                    MaskCase{"nvfp4", 5, 7, 1, 24, {2, 7}, true}, MaskCase{"mxfp4", 3, 8, 2, 64, {1, 1}, true},
                    MaskCase{"nvfp4", 5, 7, 1, 16, {2, 7}, true}, MaskCase{"mxfp4", 16, 16, 2, 16, {2, 16}}),
    [](const auto& p) {
      return std::string(p.param.recipe) + "_" + std::to_string(p.param.sq) + "_rows_" +
             std::to_string(p.param.q_heads) + "_heads_pages_of_" + std::to_string(p.param.page);
    });

TEST(Mask, RaggedRowsHaveTheirOwnNumbers) {
  Case c(gaussian({1, 7, 4, 64}, 21), gaussian({3, 90, 2, 64}, 22), gaussian({3, 90, 2, 64}, 23),
         {"mxfp4", 16, {90, 40, 7}});
  const std::vector<std::int64_t> cu{0, 4, 4, 7};
  c.problem.max_q = 4, c.problem.total_q = 7;
  c.tensors.cu_seqlens_q = cu.data();
  std::vector<float> mask(3 * 4 * 90);
  std::mt19937 rng(3);
  for (float& x : mask) x = rng() % 2 == 0 ? kHidden : static_cast<float>(rng() % 5);
  c.problem.mask = MaskTensor::additive;
  c.tensors.mask = contiguous(static_cast<const void*>(mask.data()), DType::f32, {3, 1, 4, 90});
  expect_matches(c);
}

/// Tokens outside of pages are masked and penalised as well.
TEST(Mask, ReachesTokensInSixteenBits) {
  const std::vector<float> slopes{0.5F, 0.25F, 0.0F, 0.1F};
  for (const MaskTensor kind : {MaskTensor::boolean, MaskTensor::additive}) {
    Case c(gaussian({2, 3, 4, 128}, 51), gaussian({2, 100, 2, 128}, 52), gaussian({2, 100, 2, 128}, 53),
           {"kv=mxfp4,p=bf16,sink=8,recent=20", 16, {100, 30}});
    std::vector<std::uint8_t> hidden(3 * 100);
    std::vector<float> added(3 * 100);
    std::mt19937 rng(4);
    for (std::size_t i = 0; i < added.size(); ++i) {
      hidden[i] = static_cast<std::uint8_t>(rng() % 3);
      added[i] = hidden[i] == 0 ? kHidden : static_cast<float>(rng() % 4);
    }
    c.problem.mask = kind, c.problem.alibi = c.problem.causal = true;
    c.tensors.mask = kind == MaskTensor::boolean
                         ? contiguous(static_cast<const void*>(hidden.data()), DType::u8, {1, 1, 3, 100})
                         : contiguous(static_cast<const void*>(added.data()), DType::f32, {1, 1, 3, 100});
    c.tensors.alibi_slopes = slopes.data();
    expect_matches(c);
  }
}

TEST(Mask, LeastFiniteNumberHidesNothing) {
  Case c(gaussian({1, 2, 2, 64}, 24), gaussian({1, 40, 1, 64}, 25), gaussian({1, 40, 1, 64}, 26), {"mxfp4", 16, {}});
  std::vector<float> mask(80, std::numeric_limits<float>::lowest());
  std::fill_n(mask.begin() + 40, 20, 0.0F);
  c.problem.mask = MaskTensor::additive;
  c.tensors.mask = contiguous(static_cast<const void*>(mask.data()), DType::f32, {1, 1, 2, 40});
  DeviceCall call(c);
  ASSERT_TRUE(call.run().ok());
  c.run(reference_fn(reference::Precision::f64));
  EXPECT_LE(relative_l2(call.out(), c.out), 1e-2);  // row 0: scores vanish beside the bias, the mean of V is left
}

TEST(Alibi, AsTheReference) {
  const std::vector<float> slopes{0.5F, 0.25F, 0.0F, 2.0F};
  for (const bool causal : {false, true}) {
    Case c(gaussian({2, 3, 4, 128}, 31), gaussian({2, 200, 1, 128}, 32), gaussian({2, 200, 1, 128}, 33),
           {"nvfp4", 16, {200, 130}});
    c.problem.alibi = true, c.problem.causal = causal;
    c.tensors.alibi_slopes = slopes.data();
    expect_matches(c);
  }
}

/// NaN and infinity in tokens reach the rows that see them: causal rows and a mask decide who does.
class BrokenTokens : public testing::TestWithParam<const char*> {};

TEST_P(BrokenTokens, ReachOnlyTheRowsThatSeeThem) {
  for (const auto& [in_k, value] : {std::pair{false, NAN}, {true, NAN}, {false, INFINITY}}) {
    for (const std::int64_t broken : {70, 97}) {
      Tensor k = gaussian({1, 100, 2, 128}, 41), v = gaussian({1, 100, 2, 128}, 42);
      (in_k ? k : v).at(0, broken, 1, 40) = value;
      Case c(gaussian({1, 5, 6, 128}, 43), k, v, {"kv=" + std::string(GetParam()) + ",p=bf16", 32, {}});
      c.problem.causal = true;
      expect_matches(c);  // 97 is seen by the last 3 of 5 rows
      std::vector<std::uint8_t> mask(5 * 100, 1);
      for (std::int64_t i = 0; i < 5; i += 2) mask[i * 100 + broken] = 0;
      c.problem.mask = MaskTensor::boolean;
      c.tensors.mask = contiguous(static_cast<const void*>(mask.data()), DType::u8, {1, 1, 5, 100});
      expect_matches(c);
    }
  }
}
/// 9 to 64 rows of a KV head, of sequences of several lengths: masks of tokens and of heads, boolean and additive.
TEST_P(BrokenTokens, ReachOnlyTheRowsThatSeeThemOfMany) {
  for (const std::int64_t sq : {3, 8, 16}) {
    for (const std::int64_t heads : {1, 8}) {
      Tensor k = gaussian({2, 200, 2, 128}, 61), v = gaussian({2, 200, 2, 128}, 62);
      k.at(0, 70, 1, 40) = v.at(0, 130, 0, 3) = v.at(1, 20, 1, 100) = NAN;
      v.at(0, 199, 1, 64) = v.at(1, 89, 0, 31) = INFINITY;
      Case c(gaussian({2, sq, 8, 128}, 63), k, v, {"kv=" + std::string(GetParam()) + ",p=bf16", 64, {200, 90}});
      const std::vector<std::int64_t> broken{70, 130, 199, 20, 89};
      std::vector<std::uint8_t> boolean(static_cast<std::size_t>(heads * sq * 200), 1);
      std::vector<float> additive(boolean.size());
      for (std::int64_t row = 0; row < heads * sq; ++row) {
        for (std::size_t i = 0; i < broken.size(); ++i) {
          if ((row + static_cast<std::int64_t>(i)) % 3 == 0) continue;  // this row sees it
          boolean[row * 200 + broken[i]] = 0, additive[row * 200 + broken[i]] = kHidden;
        }
      }
      c.problem.mask = MaskTensor::boolean;
      c.tensors.mask = contiguous(static_cast<const void*>(boolean.data()), DType::u8, {1, heads, sq, 200});
      expect_matches(c);
      c.problem.mask = MaskTensor::additive;
      c.tensors.mask = contiguous(static_cast<const void*>(additive.data()), DType::f32, {1, heads, sq, 200});
      expect_matches(c);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(, BrokenTokens,
                         testing::Values("mxfp4", "nvfp4", "fp8_e4m3", "mxfp4_f32", "mxfp4_f32_b64", "int4", "int4_g32",
                                         "int4_g128", "int8", "int8_g64", "bf16"),
                         [](const auto& p) { return std::string(p.param); });

TEST(Mask, BadOnesAreNamed) {
  Case c(gaussian({1, 1, 4, 128}, 1), gaussian({1, 64, 2, 128}, 2), gaussian({1, 64, 2, 128}, 3), {"mxfp4", 64, {}});
  const std::vector<float> mask(65);
  c.problem.mask = MaskTensor::additive;
  c.tensors.mask = contiguous(static_cast<const void*>(mask.data()), DType::f32, {1, 1, 1, 64});
  DeviceCall call(c);
  call.tensors().mask.data = static_cast<const std::byte*>(call.tensors().mask.data) + 2;
  EXPECT_NE(call.run().message().find("mask must start and step by multiples of 4 bytes"), std::string::npos);
  call.tensors().mask.shape[3] = 63;
  EXPECT_NE(call.run().message().find("mask has shape"), std::string::npos);
}

}  // namespace
}  // namespace mpfa::test
