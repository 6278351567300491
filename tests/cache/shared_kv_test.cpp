// Latent caches: K's bytes serve V, so every operation of a cache must handle one operand and count it once.
#include <gmock/gmock.h>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kDimV = 24;  // ends inside a block of 16 or 32

CacheConfig latent(const std::string& text, std::int64_t pages = 16, std::int64_t batch = 4) {
  CacheConfig c = cache_config(text, pages, batch);
  c.head_dim_v = kDimV;
  c.shared_kv = true;
  return c;
}

Status append_latent(PagedCache& cache, std::int32_t sequence, const Ids& ids) {
  const Tensor q = queries(ids);
  const TensorView q_view = q.view();
  return cache.append(keys(ids).view(), &q_view, &sequence, nullptr);
}

std::vector<std::byte> saved(const PagedCache& cache, std::int64_t sequence) {
  std::vector<std::byte> blob;
  EXPECT_TRUE(cache.save(blob, sequence).ok());
  return blob;
}

/// K of every token: codes as numbers, and the bf16 tokens from `wide` on.
std::vector<float> key_content(const CacheView& v, std::int64_t wide) {
  std::vector<float> all, row(kDim);
  const SequenceView& s = v.sequences[0];
  for (std::int64_t t = 0; t < s.packed_end; ++t) {
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      dequantise_tokens(v.k_format, kDim, t % kPage, 1, v.k.page(v.page_table[t / kPage], h), 1.0F, row.data(), kDim,
                        1);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  all.insert(all.end(), s.sink_k, s.sink_k + s.sink * kKvHeads * kDim);
  all.insert(all.end(), s.wide_k + (wide - s.wide_begin) * kKvHeads * kDim,
             s.wide_k + (v.lengths[0] - s.wide_begin) * kKvHeads * kDim);
  return all;
}

void expect_latent(const PagedCache& cache, std::int64_t sequence, const std::string& text, const Ids& ids) {
  PagedCache fresh = poisoned_cache(latent(text));
  ASSERT_TRUE(append_latent(fresh, 0, ids).ok());
  const CacheView a = view_of(cache, sequence), b = view_of(fresh, 0);
  const std::int64_t wide = std::max(a.sequences[0].wide_begin, b.sequences[0].wide_begin);
  EXPECT_EQ(key_content(a, wide), key_content(b, wide));
}

const char* const kRecipes[] = {"kv=mxfp4,centre=mean", "kv=nvfp4@keys", "kv=nvfp4,sink=4,recent=7",
                                "kv=mxfp4_f32,phase_switch=on"};

TEST(SharedKv, BytesAreCountedOnce) {
  const auto bytes = [](const char* text, bool shared) {
    return bytes_per_token(recipe(text), 128, 1, 576, 512, 64, shared);
  };
  EXPECT_EQ(bytes("kv=mxfp4", true), 576 / 2 + 18);
  EXPECT_EQ(bytes("kv=mxfp4", false), 576 / 2 + 18 + 512 / 2 + 16);
  EXPECT_EQ(bytes("bf16", true), 1152);
  EXPECT_EQ(bytes("fp8,q_centre=static,rank_one=bf16", true), 576 + 4 + 128 * 2);

  PagedCache cache = poisoned_cache(latent("kv=bf16,recent=page"));
  ASSERT_TRUE(append_latent(cache, 0, ids_from(0, 10)).ok());
  // One page, and ten tokens of K in bf16 beside it.
  EXPECT_EQ(cache.memory_bytes(), kPage * kKvHeads * kDim * 2 + 10 * kKvHeads * kDim * 2);
}

TEST(SharedKv, OneCallTakesKeysOnly) {
  PagedCache cache = poisoned_cache(latent("kv=mxfp4"));
  const Ids ids = ids_from(0, 3);
  Tensor v({1, 3, kKvHeads, kDimV});
  EXPECT_THAT(cache.append(keys(ids).view(), v.view(), nullptr, nullptr, nullptr).message(),
              HasSubstr("append: v was given, but V of this cache is the first 24 channels of K (shared_kv)"));
  EXPECT_THAT(cache.write_slots(keys(ids).view(), v.view(), std::vector<std::int64_t>{0, 1, 2}).message(),
              HasSubstr("write_slots: v was given"));
  PagedCache two = poisoned_cache(cache_config("kv=mxfp4"));
  EXPECT_THAT(append_latent(two, 0, ids).message(), HasSubstr("append: v is missing; pass v with head dim 32"));
  EXPECT_THAT(two.write_slots(keys(ids).view(), std::vector<std::int64_t>{0, 1, 2}).message(),
              HasSubstr("write_slots: v is missing"));
  EXPECT_EQ(cache.lengths()[0], 0);
  EXPECT_EQ(cache.free_pages(), 16);
}

TEST(SharedKv, SlotsHoldWhatAppendHolds) {
  PagedCache by_slot = poisoned_cache(latent("kv=nvfp4")), appended = poisoned_cache(latent("kv=nvfp4"));
  const Ids ids = ids_from(0, kPage);
  std::vector<std::int64_t> slots;
  for (std::int64_t t = 0; t < kPage; ++t) slots.push_back(t);
  ASSERT_TRUE(by_slot.write_slots(keys(ids).view(), slots).ok());
  ASSERT_TRUE(append_latent(appended, 0, ids).ok());
  EXPECT_EQ(std::memcmp(by_slot.storage(), appended.storage(), static_cast<std::size_t>(by_slot.storage_bytes())), 0);
}

TEST(SharedKv, EditedSequencesEqualFreshOnes) {
  for (const char* text : kRecipes) {
    SCOPED_TRACE(text);
    const bool mean = recipe(text).centre == Centre::mean;
    PagedCache cache = poisoned_cache(latent(text));
    const Ids first = ids_from(0, 70);
    ASSERT_TRUE(append_latent(cache, 0, first).ok());
    ASSERT_TRUE(append_latent(cache, 0, ids_from(70, 20)).ok());
    const std::vector<std::byte> before = saved(cache, 0);
    ASSERT_TRUE(cache.fork(0, 1).ok());
    EXPECT_EQ(saved(cache, 1), before);
    ASSERT_TRUE(append_latent(cache, 1, ids_from(200, 40)).ok());
    EXPECT_EQ(saved(cache, 0), before) << "an append to the fork changed its source";
    ASSERT_TRUE(cache.truncate(0, 70).ok());
    if (!mean) expect_latent(cache, 0, text, first);
    ASSERT_TRUE(append_latent(cache, 0, ids_from(70, 20)).ok());
    if (!mean) expect_latent(cache, 0, text, joined(first, ids_from(70, 20)));
    PagedCache other = poisoned_cache(latent(text, 8, 2));
    ASSERT_TRUE(other.load(before, 1).ok());
    EXPECT_EQ(saved(other, 1), before);
    ASSERT_TRUE(append_latent(other, 1, ids_from(200, 40)).ok());
    EXPECT_EQ(saved(other, 1), saved(cache, 1));
    ASSERT_TRUE(cache.seal().ok());
    EXPECT_EQ(cache.view().sequences[0].v_mean != nullptr, mean);
    if (mean) {
      for (std::int64_t h = 0; h < kKvHeads; ++h) {
        const SequenceView& s = cache.view().sequences[0];
        EXPECT_TRUE(std::equal(s.v_mean + h * kDimV, s.v_mean + (h + 1) * kDimV, s.k_mean + h * kDim));
      }
    }
    ASSERT_TRUE(cache.copy_page(cache.view().page_table[0], 15).ok());
  }
}

TEST(SharedKv, BlobsOfTheOtherKindAreRefused) {
  PagedCache shared = poisoned_cache(latent("kv=mxfp4"));
  ASSERT_TRUE(append_latent(shared, 0, ids_from(0, 5)).ok());
  CacheConfig apart = latent("kv=mxfp4");
  apart.shared_kv = false;
  PagedCache other = poisoned_cache(apart);
  EXPECT_THAT(other.load(saved(shared, 0), 0).message(), HasSubstr("the blob's shared_kv is 1, the cache's is 0"));
}

TEST(SharedKv, RecipesThatCannotShareSayWhy) {
  const auto message = [](const std::string& text, std::int64_t dv = kDimV) {
    CacheConfig c = latent(text);
    c.head_dim_v = dv;
    const Result<PagedCache> made = PagedCache::create(c);
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_THAT(message("mpfa"), HasSubstr("V is read from the bytes of K, but k=nvfp4 and v=fp8_e4m3"));
  EXPECT_THAT(message("kv=mxfp4", 33), HasSubstr("V of 33 channels cannot be the first of K's 32"));
  EXPECT_THAT(message("kv=lloyd4"), HasSubstr("k=lloyd4 is scaled by the norm of a whole token"));
  EXPECT_EQ(message("kv=lloyd4", 32), "");
  EXPECT_THAT(message("kv=mxfp4,v_mean=mean"), HasSubstr("v_mean=mean changes V apart from K"));
  EXPECT_THAT(message("kv=int8,v_residual=on"), HasSubstr("v_residual=on changes V apart from K"));
  EXPECT_THAT(message("kv=mxfp4,rotate=qk"), HasSubstr("take rotate=qkv"));
  EXPECT_THAT(message("kv=mxfp4,rotate=qkv"),
              HasSubstr("mixes blocks of 32 channels of K and V ends inside one, at 24"));
  CacheConfig scaled = latent("kv=fp8_e4m3_static");
  scaled.k_global = {1.0F, 2.0F};
  EXPECT_TRUE(PagedCache::create(scaled).ok());
  scaled.v_global = {1.0F, 2.0F};
  EXPECT_THAT(PagedCache::create(scaled).status().message(), HasSubstr("V is read with K's scales"));
}

}  // namespace
}  // namespace mpfa::test
