// What a row may not depend on: unused memory, later tokens, its batch mates. Bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

class Isolation : public testing::TestWithParam<std::tuple<Implementation, std::string>> {
 protected:
  [[nodiscard]] static const AttendFn& attend() { return std::get<0>(GetParam()).attend; }
  [[nodiscard]] static const std::string& recipe_name() { return std::get<1>(GetParam()); }
};

// K is not centred by its own prompt here: such a mean is allowed to depend on every token of it.
INSTANTIATE_TEST_SUITE_P(
    All, Isolation,
    testing::Combine(testing::ValuesIn(implementations()),
                     testing::Values("bf16", "fp8", "nvfp4,centre=none", "mxattention_uos",
                                     "k=int8,v=int4_asym,p=e4m3x256,order=reverse,sink=3,recent=9",
                                     "q=nvfp4,k=nvfp4_4over6,v=nvfp4@keys,p=nvfp4_underflow,sink=4,recent=page",
                                     "kv=mxfp4,v_mean=page,p=bf16")),
    [](const auto& test) { return std::get<0>(test.param).name + "_" + std::to_string(test.index % 7); });

PagedCache cache_over(const std::string& text, unsigned char fill, const Tensor& k, const Tensor& v,
                      std::int64_t q_heads, const std::vector<std::int64_t>& lengths) {
  CacheConfig c;
  c.recipe = recipe(text);
  c.batch = k.shape[0];
  c.page_size = 32;
  c.num_pages = c.batch * (k.shape[1] / 32 + 2);
  c.q_heads = q_heads;
  c.kv_heads = k.shape[2];
  c.head_dim = k.shape[3];
  c.head_dim_v = v.shape[3];
  PagedCache cache = PagedCache::create(c).value();
  std::memset(cache.storage(), fill, static_cast<std::size_t>(cache.storage_bytes()));
  EXPECT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, lengths.data()).ok());
  return cache;
}

struct Answer {
  std::vector<double> out, lse;
};

Answer attend_causal(const AttendFn& attend, const PagedCache& cache, const Tensor& q, std::int64_t max_kv) {
  AttentionProblem p;
  p.recipe = cache.config().recipe;
  p.batch = q.shape[0];
  p.max_q = q.shape[1];
  p.max_kv = max_kv;
  p.q_heads = q.shape[2];
  p.kv_heads = cache.config().kv_heads;
  p.head_dim = cache.config().head_dim;
  p.head_dim_v = cache.config().head_dim_v;
  p.page_size = cache.config().page_size;
  p.causal = true;
  AttentionTensors t;
  t.q = q.view();
  t.cache = cache.view();
  Answer r;
  const Status s = attend(p, t, r.out, r.lse);
  EXPECT_TRUE(s.ok()) << s.message();
  return r;
}

TEST_P(Isolation, UnusedMemoryMayHoldAnything) {
  for (const std::int64_t n : {1, 31, 32, 33, 64, 100, 129}) {
    const Tensor k = gaussian({1, n, 1, 32}, 1);
    const Tensor v = gaussian({1, n, 1, 32}, 2);
    const Tensor q = gaussian({1, n, 2, 32}, 3);
    const Answer zero = attend_causal(attend(), cache_over(recipe_name(), 0x00, k, v, 2, {n}), q, n);
    const Answer poison = attend_causal(attend(), cache_over(recipe_name(), 0xFF, k, v, 2, {n}), q, n);
    EXPECT_EQ(zero.out, poison.out) << n;
    EXPECT_EQ(zero.lse, poison.lse) << n;
  }
}

TEST_P(Isolation, LaterTokensChangeNoEarlierRow) {
  constexpr std::int64_t n = 140;
  const Tensor q = gaussian({1, n, 2, 32}, 3);
  const Tensor k = gaussian({1, n, 1, 32}, 1);
  const Tensor v = gaussian({1, n, 1, 32}, 2);
  const Answer before = attend_causal(attend(), cache_over(recipe_name(), 0, k, v, 2, {n}), q, n);
  for (const std::int64_t t : {0, 15, 16, 63, 64, 100}) {
    Tensor k2 = k;
    Tensor v2 = v;
    std::fill(k2.data.begin() + (t + 1) * 32, k2.data.end(), -1e4F);
    std::fill(v2.data.begin() + (t + 1) * 32, v2.data.end(), 1e4F);
    const Answer after = attend_causal(attend(), cache_over(recipe_name(), 0, k2, v2, 2, {n}), q, n);
    const auto rows = static_cast<std::ptrdiff_t>(t + 1) * 2;
    EXPECT_TRUE(std::equal(before.lse.begin(), before.lse.begin() + rows, after.lse.begin())) << t;
    EXPECT_TRUE(std::equal(before.out.begin(), before.out.begin() + rows * 32, after.out.begin())) << t;
  }
}

TEST_P(Isolation, BatchMatesChangeNothing) {
  const std::vector<std::int64_t> lengths{70, 0, 1, 129, 64};
  const Tensor k = gaussian({5, 129, 1, 32}, 1);
  const Tensor v = gaussian({5, 129, 1, 32}, 2);
  const Tensor q = gaussian({5, 1, 2, 32}, 3);
  const Answer together = attend_causal(attend(), cache_over(recipe_name(), 0xFF, k, v, 2, lengths), q, 129);
  for (std::int64_t b = 0; b < 5; ++b) {
    const auto one = [b](const Tensor& x) {
      Tensor y({1, x.shape[1], x.shape[2], x.shape[3]});
      const auto size = static_cast<std::ptrdiff_t>(y.data.size());
      std::copy_n(x.data.begin() + b * size, size, y.data.begin());
      return y;
    };
    const Answer alone =
        attend_causal(attend(), cache_over(recipe_name(), 0, one(k), one(v), 2, {lengths[b]}), one(q), 129);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + b * 64)) << b;
    EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.end(), together.lse.begin() + b * 2)) << b;
  }
}

}  // namespace
}  // namespace mpfa::test
