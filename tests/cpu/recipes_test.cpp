// The CPU kernel against the float64 reference over the same cache bytes: every recipe, decode and prefill.
#include <gtest/gtest.h>

#include "tests/support/filled.hpp"

namespace mpfa {
namespace {

struct Shape {
  std::int64_t batch, sq, sk, hq, hkv, d, dv;
};

class EveryRecipe : public ::testing::TestWithParam<std::string> {};

PagedCache make_cache(const std::string& text, const Shape& s, const test::Tensor& q, const test::Tensor& k,
                      const test::Tensor& v) {
  CacheConfig c;
  c.recipe = test::recipe(text);
  c.batch = s.batch;
  c.page_size = 64;
  c.num_pages = s.batch * (s.sk / 64 + 2);
  c.q_heads = s.hq;
  c.kv_heads = s.hkv;
  c.head_dim = s.d;
  c.head_dim_v = s.dv;
  if (c.recipe.centre == Centre::fixed) c.k_mean = test::gaussian({1, 1, s.hkv, s.d}, 91).data;
  if (c.recipe.q_centre == QCentre::fixed) c.q_mean = test::gaussian({1, 1, s.hq, s.d}, 92).data;
  PagedCache cache = PagedCache::create(c).value();
  // The tokens before the queries first, then those that come with them: what a prefill in chunks does.
  const std::int64_t past = s.sk - s.sq;
  const auto part = [](const test::Tensor& x, std::int64_t from, std::int64_t count) {
    TensorView t = x.view();
    t.data = x.data.data() + from * t.stride[1];
    t.shape[1] = count;
    return t;
  };
  for (const auto& [from, count] : {std::pair{std::int64_t{0}, past}, std::pair{past, s.sq}}) {
    const TensorView qv = part(q, from, count);
    EXPECT_TRUE(cache.append(part(k, from, count), part(v, from, count), &qv, nullptr, nullptr).ok());
    if (from == 0 && s.sq == 1) {
      EXPECT_TRUE(cache.seal().ok());
    }
  }
  return cache;
}

TEST_P(EveryRecipe, AgreesWithTheReference) {
  for (const Shape& s :
       {Shape{2, 1, 333, 6, 2, 64, 64}, Shape{1, 70, 200, 4, 1, 128, 64}, Shape{1, 5, 69, 4, 4, 32, 96}}) {
    const test::Tensor q = test::gaussian({s.batch, s.sk, s.hq, s.d}, 1);
    const test::Tensor k = test::with_bias(test::gaussian({s.batch, s.sk, s.hkv, s.d}, 2), 3, 4.0F);
    const test::Tensor v = test::gaussian({s.batch, s.sk, s.hkv, s.dv}, 3);
    const PagedCache cache = make_cache(GetParam(), s, q, k, v);
    AttentionProblem p;
    p.recipe = cache.config().recipe;
    p.batch = s.batch;
    p.max_q = s.sq;
    p.max_kv = s.sk;
    p.q_heads = s.hq;
    p.kv_heads = s.hkv;
    p.head_dim = s.d;
    p.head_dim_v = s.dv;
    p.causal = true;
    AttentionTensors t;
    t.q = q.view();
    t.q.data = q.data.data() + (s.sk - s.sq) * t.q.stride[1];
    t.q.shape[1] = s.sq;
    t.cache = cache.view();
    std::vector<double> want, want_lse, got, got_lse;
    const Status reference = reference::attend(p, t, reference::Precision::f64, want, want_lse);
    ASSERT_TRUE(reference.ok()) << reference.message();
    const Status kernel = test::attend_cpu(p, t, got, got_lse);
    ASSERT_TRUE(kernel.ok()) << kernel.message();
    EXPECT_LE(test::relative_l2(got, want), test::kernel_tolerance(p.recipe)) << s.sq << " x " << s.sk;
    EXPECT_LE(test::max_difference(got_lse, want_lse), 10 * test::kernel_tolerance(p.recipe)) << s.sq << " x " << s.sk;
  }
}

std::vector<std::string> all_recipes() {
  std::vector<std::string> names = recipe_names();
  names.insert(names.end(), {"mxfp4,centre=none", "nvfp4,rotate=qkv,v_mean=mean", "mpfa,rank_one=off",
                             "mxfp4,v_mean=page", "mxattention_uos,v_mean=page", "fp8_loglin,v_mean=page,sink=5",
                             "k=fp8_e4m3,v=nvfp4@keys,p=nvfp4_two_level,v_mean=page,order=reverse",
                             "q=f32,kv=int4_asym,p=f32,v_mean=page", "k=int8_g32,v=int4_asym,p=bf16,sink=3,recent=9",
                             "k=f32,v=f32,p=f32"});
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryRecipe, ::testing::ValuesIn(all_recipes()),
                         [](const ::testing::TestParamInfo<std::string>& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace mpfa
