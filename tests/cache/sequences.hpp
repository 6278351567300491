// Sequences named by the ids of their tokens, so that any edit of a cache can be compared with a cache made afresh.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/problems.hpp"

namespace mpfa::test {

inline constexpr std::int64_t kQHeads = 4, kKvHeads = 2, kDim = 32, kPage = 32;
inline constexpr int kVocabulary = 512;

using Ids = std::vector<int>;

inline Ids ids_from(int first, std::int64_t n) {
  Ids ids(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) ids[i] = static_cast<int>((first + i) % kVocabulary);
  return ids;
}

inline Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// [1, ids, heads, kDim]: a row of a fixed random table per id.
inline Tensor rows_of(const Ids& ids, std::int64_t heads, unsigned seed) {
  static std::vector<std::pair<unsigned, Tensor>> tables;
  auto it = std::find_if(tables.begin(), tables.end(), [&](const auto& t) { return t.first == seed; });
  if (it == tables.end()) it = tables.insert(it, {seed, gaussian({1, kVocabulary, heads, kDim}, seed)});
  Tensor x({1, static_cast<std::int64_t>(ids.size()), heads, kDim});
  const std::int64_t row = heads * kDim;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::copy_n(it->second.data.begin() + ids[i] * row, row, x.data.begin() + static_cast<std::int64_t>(i) * row);
  }
  return x;
}
inline Tensor keys(const Ids& ids) {
  return rows_of(ids, kKvHeads, 11);
}
inline Tensor values(const Ids& ids) {
  return rows_of(ids, kKvHeads, 12);
}
inline Tensor queries(const Ids& ids) {
  return rows_of(ids, kQHeads, 13);
}

inline CacheConfig cache_config(const std::string& text, std::int64_t pages = 16, std::int64_t batch = 4) {
  CacheConfig c;
  c.recipe = recipe(text);
  c.batch = batch;
  c.num_pages = pages;
  c.page_size = kPage;
  c.q_heads = kQHeads;
  c.kv_heads = kKvHeads;
  c.head_dim = c.head_dim_v = kDim;
  if (c.recipe.centre == Centre::fixed) c.k_mean = gaussian({1, 1, kKvHeads, kDim}, 21).data;
  if (c.recipe.q_centre == QCentre::fixed) c.q_mean = gaussian({1, 1, kQHeads, kDim}, 22).data;
  return c;
}

/// A cache whose storage holds 0xFF, so that a byte nobody wrote is noticed.
inline PagedCache poisoned_cache(const CacheConfig& c) {
  PagedCache cache = PagedCache::create(c).value();
  std::memset(cache.storage(), 0xFF, static_cast<std::size_t>(cache.storage_bytes()));
  return cache;
}

inline Status append(PagedCache& cache, std::int32_t sequence, const Ids& ids) {
  const Tensor q = queries(ids);
  const TensorView q_view = q.view();
  return cache.append(keys(ids).view(), values(ids).view(), &q_view, &sequence, nullptr);
}

inline PagedCache fresh_cache(CacheConfig c, const Ids& ids, bool sealed) {
  c.batch = 1;
  c.num_pages = static_cast<std::int64_t>(ids.size()) / kPage + 1;
  PagedCache cache = poisoned_cache(c);
  EXPECT_TRUE(append(cache, 0, ids).ok());
  EXPECT_TRUE(!sealed || cache.seal().ok());
  return cache;
}

inline CacheView view_of(const PagedCache& cache, std::int64_t sequence) {
  CacheView v = cache.view();
  v.page_table += sequence * v.page_table_stride;
  v.lengths += sequence;
  v.sequences += sequence;
  return v;
}

/// What kernels read of a sequence: codes as numbers, rank-one terms, 16-bit tokens from `wide` on.
inline std::vector<float> content(const CacheView& v, std::int64_t wide) {
  std::vector<float> all;
  std::vector<float> row(kDim);
  const SequenceView& s = v.sequences[0];
  for (std::int64_t t = 0; t < v.lengths[0]; ++t) {
    const std::int32_t page = v.page_table[t / kPage];
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      for (const bool is_k : {true, false}) {
        if (t >= s.packed_end) continue;
        const OperandPages& pages = is_k ? v.k : v.v;
        dequantise_tokens(is_k ? v.k_format : v.v_format, kDim, t % kPage, 1, pages.page(page, h),
                          pages.global_scale(h), row.data(), kDim, 1);
        all.insert(all.end(), row.begin(), row.end());
      }
      // v_mean=page: codes mean nothing without the mean of their page.
      for (std::int64_t i = 0; i < kDim && v.v_page_means != nullptr && t < s.packed_end; ++i) {
        all.push_back(v.v_page_means[page * v.v_page_mean_page_stride + h * v.v_page_mean_head_stride + i]);
      }
      for (std::int64_t m = 0; m < v.group && v.rank_one != nullptr; ++m) {
        all.push_back(v.rank_one_at(page, h, t % kPage, m));
      }
    }
  }
  all.insert(all.end(), s.sink_k, s.sink_k + s.sink * kKvHeads * kDim);
  all.insert(all.end(), s.sink_v, s.sink_v + s.sink * kKvHeads * kDim);
  for (const std::uint16_t* x : {s.wide_k, s.wide_v}) {
    all.insert(all.end(), x + (wide - s.wide_begin) * kKvHeads * kDim,
               x + (v.lengths[0] - s.wide_begin) * kKvHeads * kDim);
  }
  return all;
}

/// Output and LSE of the last `rows` positions on the CPU.
inline std::vector<double> decode(const CacheConfig& c, const CacheView& v, std::int64_t rows = 1) {
  AttentionProblem p;
  p.recipe = c.recipe;
  p.max_q = rows;
  p.max_kv = v.lengths[0];
  p.q_heads = kQHeads;
  p.kv_heads = kKvHeads;
  p.head_dim = p.head_dim_v = kDim;
  p.page_size = kPage;
  p.causal = true;
  p.threads = 1;
  const Tensor q = queries(ids_from(7, rows));
  AttentionTensors t;
  t.q = q.view();
  t.cache = v;
  std::vector<double> out, lse;
  const Status s = attend_cpu(p, t, out, lse);
  EXPECT_TRUE(s.ok()) << s.message();
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

/// Sequence `sequence` is, bit for bit, what a cache that only ever saw `ids` holds and computes.
inline void expect_fresh(const PagedCache& cache, std::int64_t sequence, const Ids& ids, bool sealed,
                         const std::string& what, std::int64_t rows = 1) {
  ASSERT_EQ(cache.lengths()[sequence], static_cast<std::int64_t>(ids.size())) << what;
  if (ids.empty()) return;
  const PagedCache fresh = fresh_cache(cache.config(), ids, sealed);
  const CacheView a = view_of(cache, sequence), b = view_of(fresh, 0);
  ASSERT_EQ(a.sequences[0].packed_end, b.sequences[0].packed_end) << what;
  const std::int64_t wide = std::max(a.sequences[0].wide_begin, b.sequences[0].wide_begin);
  ASSERT_EQ(content(a, wide), content(b, wide)) << what;
  ASSERT_EQ(decode(cache.config(), a, rows), decode(cache.config(), b, rows)) << what;
}

}  // namespace mpfa::test
