// Random problems: the CPU kernel agrees with the float64 reference over the same cache, whatever the combination of
// shape, recipe, mask and page size.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "tests/support/problems.hpp"

namespace mpfa {
namespace {

template <class T>
T pick(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}
std::int64_t between(std::int64_t low, std::int64_t high) {
  return *rc::gen::inRange<std::int64_t>(low, high + 1);
}
bool coin() {
  return *rc::gen::arbitrary<bool>();
}

/// A problem and everything its pointers need.
struct Random {
  AttentionProblem p;
  AttentionTensors t;
  std::vector<std::int64_t> cu{0};
  test::Tensor q;
  std::vector<float> sinks, slopes, bias;
  std::vector<std::uint8_t> boolean;
};

std::string random_recipe() {
  return pick<std::string>({"bf16", "fp8", "int8", "mxfp4", "nvfp4,rotate=qk", "mpfa", "mpfa,rank_one=split",
                            "k=nvfp4,v=nvfp4@keys,p=bf16,sink=4", "k=mxfp4,v=int8,recent=6,p=f32",
                            "k=int4_g32,v=lloyd4,p=f32,v_mean=mean", "k=f32,v=f32,p=f32",
                            "k=int8,v=nvfp4,p=f32,v_mean=page,rotate=qkv",
                            "kv=mxfp4,p=f32,v_mean=page,sink=3,recent=5"});
}

PagedCache random_cache(Random& r) {
  AttentionProblem& p = r.p;
  CacheConfig c;
  c.recipe = p.recipe;
  c.batch = p.batch;
  c.page_size = p.page_size;
  c.num_pages = p.batch * (p.max_kv / p.page_size + 2);
  c.q_heads = p.q_heads;
  c.kv_heads = p.kv_heads;
  c.head_dim = p.head_dim;
  c.head_dim_v = p.head_dim_v;
  PagedCache cache = PagedCache::create(c).value();
  const auto seed = static_cast<unsigned>(between(0, 1 << 20));
  // Sequences of different lengths; their last tokens come with the queries, as in a call of a serving engine.
  std::int64_t total = 0;
  std::vector<std::int64_t> past, fresh;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    past.push_back(between(0, p.max_kv - p.max_q));
    fresh.push_back(between(0, p.max_q));
    total += fresh.back();
    r.cu.push_back(total);
  }
  const test::Tensor k = test::with_bias(test::gaussian({p.batch, p.max_kv, p.kv_heads, p.head_dim}, seed), 1, 5.0F);
  const test::Tensor v = test::heavy_tail({p.batch, p.max_kv, p.kv_heads, p.head_dim_v}, seed + 1);
  const test::Tensor q_all = test::gaussian({p.batch, p.max_kv, p.q_heads, p.head_dim}, seed + 2);
  for (const auto& counts : {past, fresh}) {
    const TensorView qv = q_all.view();
    const Status s = cache.append(k.view(), v.view(), &qv, nullptr, counts.data());
    if (!s.ok()) throw std::runtime_error(s.message());
  }
  p.total_q = std::max<std::int64_t>(total, 1);
  r.q = test::gaussian({1, total, p.q_heads, p.head_dim}, seed + 3);
  return cache;
}

void random_features(Random& r) {
  AttentionProblem& p = r.p;
  p.causal = coin();
  if (coin()) p.window_left = between(0, 40);
  if (coin()) p.window_right = between(0, 10);
  if (coin()) p.softcap = 20.0F;
  if (coin()) p.softmax_scale = 0.2F;
  if ((p.sinks = coin())) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) r.sinks.push_back(static_cast<float>(h % 5) - 1.0F);
    r.t.sinks = r.sinks.data();
  }
  if ((p.alibi = coin())) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) r.slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
    r.t.alibi_slopes = r.slopes.data();
  }
}

RC_GTEST_PROP(RandomProblems, KernelAgreesWithTheReference, ()) {
  Random r;
  AttentionProblem& p = r.p;
  p.recipe = test::recipe(random_recipe());
  p.batch = between(1, 4);
  p.max_q = between(1, 40);
  p.max_kv = p.max_q + between(0, 180);
  p.kv_heads = between(1, 3);
  p.q_heads = p.kv_heads * pick<std::int64_t>({1, 2, 3, 5, 7, 16});
  p.head_dim = pick<std::int64_t>({16, 32, 64, 80, 96, 128});
  p.head_dim_v = pick<std::int64_t>({16, 32, 48, 64, 128});
  p.page_size =
      commit_unit(p.recipe, 1) > 1 ? pick<std::int64_t>({16, 32, 64}) : pick<std::int64_t>({1, 7, 16, 64, 100});
  p.threads = static_cast<int>(between(1, 3));
  if (p.recipe.k.block_channels == 32 || p.recipe.v.block_channels == 32) p.head_dim = p.head_dim_v = 64;
  const PagedCache cache = random_cache(r);
  random_features(r);
  r.t.q = r.q.view();
  r.t.cu_seqlens_q = r.cu.data();
  r.t.cache = cache.view();
  std::vector<double> want, want_lse, got, got_lse;
  const Status reference = reference::attend(p, r.t, reference::Precision::f64, want, want_lse);
  RC_ASSERT(reference.message() == "");
  const Status kernel = test::attend_cpu(p, r.t, got, got_lse);
  RC_ASSERT(kernel.message() == "");
  // Heavy tails: errors are measured against the largest value that V may bring.
  double size = 1.0;
  for (const double x : want) size = std::max(size, std::abs(x));
  const double bound = p.recipe.p == PMode::f32 && !keeps_wide_tokens(p.recipe) ? 2e-5 : 1e-2;
  RC_ASSERT(test::max_difference(got, want) <= bound * size);
  RC_ASSERT(test::max_difference(got_lse, want_lse) <= (p.recipe.p == PMode::f32 ? 1e-4 : 1e-2));
}

}  // namespace
}  // namespace mpfa
