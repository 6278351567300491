// A fixture with one storage format as K and V, for classes of faults that must not depend on the format.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cstring>

#include "tests/support/mixed_batch.hpp"

namespace mpfa::test {

inline constexpr std::int64_t kDim = 64, kPage = 64;

class EveryFormat : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] Recipe plain() const { return recipe("q=f32,k=" + GetParam() + ",v=" + GetParam() + ",p=f32"); }

  /// Two sequences of at most max_kv keys, 4 query over 2 KV heads.
  [[nodiscard]] AttentionProblem problem(std::int64_t rows, std::int64_t max_kv) const {
    AttentionProblem p;
    p.recipe = plain();
    p.batch = 2;
    p.max_q = rows;
    p.max_kv = max_kv;
    p.q_heads = 4;
    p.kv_heads = 2;
    p.head_dim = p.head_dim_v = kDim;
    p.page_size = kPage;
    p.causal = true;
    p.threads = 1;
    return p;
  }

  [[nodiscard]] PagedCache cache_of(std::int64_t batch, std::int64_t tokens, int fill = 0xFF) const {
    CacheConfig c;
    c.recipe = plain();
    c.batch = batch;
    c.page_size = kPage;
    c.num_pages = batch * (tokens / kPage + 1);
    c.q_heads = 4;
    c.kv_heads = 2;
    c.head_dim = c.head_dim_v = kDim;
    c.threads = 1;
    if (c.recipe.k.rule == ScaleRule::fixed) c.k_global = c.v_global = {0.02F, 0.03F};
    PagedCache cache = PagedCache::create(c).value();
    std::memset(cache.storage(), fill, static_cast<std::size_t>(cache.storage_bytes()));
    return cache;
  }
};

inline Answer answer(const AttentionProblem& p, const AttentionTensors& t) {
  Answer a;
  const Status s = attend_cpu(p, t, a.out, a.lse);
  EXPECT_TRUE(s.ok()) << s.message();
  return a;
}

/// Rows [first, first + count) of every sequence, as a view.
inline TensorView part(const Tensor& x, std::int64_t first, std::int64_t count) {
  TensorView v = x.view();
  v.data = x.data.data() + first * v.stride[1];
  v.shape[1] = count;
  return v;
}

inline std::string format_test_name(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

}  // namespace mpfa::test
