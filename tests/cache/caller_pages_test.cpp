// Pages of the caller and a recipe: quantising writes by slot, and pages taken over into a cache.
#include <gmock/gmock.h>

#include "tests/cache/caller_pools.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

TEST(QuantiseToPages, WritesTheBytesOfWriteSlots) {
  for (const char* text : {"mpfa_static,rank_one=off,q_centre=none", "mxfp4,centre=none", "fp8", "bf16",
                           "turboquant_4bit", "k=int8_g32,v=int4_g32,p=f32"}) {
    const CacheConfig c = cache_config(text, 4);
    PagedCache cache = poisoned_cache(c);
    Pools pools(c);
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> narrow;
    for (std::int64_t t = 0; t < 50; ++t) slots.push_back(t % 7 == 3 ? -1 : (t < 20 ? 3 : 1) * kPage + t % kPage);
    const Ids ids = ids_from(5, 50);
    for (const std::int64_t s : slots) narrow.push_back(static_cast<std::int32_t>(s));
    ASSERT_TRUE(cache.write_slots(keys(ids).view(), values(ids).view(), slots).ok()) << text;
    ASSERT_TRUE(pools.write(ids, narrow).ok()) << text << pools.write(ids, slots).message();
    expect_same_tokens(cache, pools, slots, text);
    EXPECT_EQ(pools.counters.saturated_elements, cache.counters().saturated_elements);
    // Int64 slots write the same, and padding keeps its bytes.
    const std::vector<std::byte> before = pools.k.bytes;
    ASSERT_TRUE(pools.write(ids, slots).ok());
    EXPECT_EQ(pools.k.bytes, before);
    EXPECT_EQ(pools.k.bytes.back(), std::byte{0xFF});
    EXPECT_EQ(pools.k.bytes.front(), std::byte{0xFF});
  }
}

TEST(QuantiseToPages, RefusesWithNothingWritten) {
  Pools pools(cache_config("mxfp4,centre=none", 4));
  const std::vector<std::byte> before = pools.k.bytes;
  const auto refused = [&](const std::vector<std::int64_t>& slots) {
    return pools.write(ids_from(0, static_cast<std::int64_t>(slots.size())), slots).message();
  };
  EXPECT_THAT(refused({0, 4 * kPage}), HasSubstr("slot_mapping[1] is 128; 4 pages of 32 tokens have slots 0..127"));
  EXPECT_THAT(refused({0, -2}), HasSubstr("slot_mapping[1] is -2"));
  EXPECT_THAT(refused({7, 3, 7}), HasSubstr("slot 7 is given twice"));
  EXPECT_THAT(pools.write(ids_from(0, 3), std::vector<std::int64_t>{1, 2}).message(), HasSubstr("k has shape"));
  const auto recipe_refused = [&](const char* text) {
    CacheConfig c = cache_config(text, 4);
    return quantise_to_pages(c, pools.k.pages, pools.v.pages, keys({1}).view(), values({1}).view(),
                             std::vector<std::int64_t>{0}, nullptr)
        .message();
  };
  EXPECT_THAT(recipe_refused("mxfp4"), HasSubstr("static or none"));
  EXPECT_THAT(recipe_refused("mpfa_static"), HasSubstr("rank-one"));
  EXPECT_THAT(recipe_refused("mxfp4,centre=none,sink=2"), HasSubstr("append to a PagedCache"));
  EXPECT_THAT(recipe_refused("nvfp4,centre=none"), HasSubstr("'mxfp4 linear"));
  pools.config.k_global = {2.0F, 1.0F};
  EXPECT_THAT(refused({0}), HasSubstr("k_global of head 0 is 2 in the configuration and 1 in the pages"));
  pools.config.k_global.clear();
  pools.config.num_pages = 5;
  EXPECT_THAT(refused({0}), HasSubstr("the configuration 5"));
  EXPECT_EQ(pools.k.bytes, before);
}

TEST(ImportPages, ContinuesWhatAnotherProgramBegan) {
  for (const char* text : {"mxfp4,centre=none", "k=int8_g32,v=int4_g32,p=f32", "mxfp4,centre=static"}) {
    const CacheConfig c = cache_config(text, 4);
    const Ids ids = ids_from(0, 40);
    const PagedCache source = fresh_cache(c, ids, false);
    const CacheView own = source.view();
    CacheConfig pool = c;
    pool.num_pages = own.num_pages;
    Pool k(pool, c.recipe.k, kDim, 0, PagesLayout::ggml), v(pool, c.recipe.v, kDim, 0, PagesLayout::ggml);
    const std::vector<std::int32_t> pages{own.page_table[0], own.page_table[1]};
    ASSERT_TRUE(copy_pages(k_pages(own), k.pages, pages, pages, 40).ok());
    ASSERT_TRUE(copy_pages(v_pages(own), v.pages, pages, pages, 40).ok());
    PagedCache cache = poisoned_cache(c);
    const Status done = cache.import_pages(2, k.pages.view(), v.pages.view(), pages, 40);
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(cache.lengths()[2], 40);
    EXPECT_EQ(cache.free_pages(), 2);
    // More tokens follow, as if the cache had held all of them from the start.
    ASSERT_TRUE(append(cache, 2, ids_from(40, 9)).ok());
    const PagedCache whole = fresh_cache(c, ids_from(0, 49), false);
    EXPECT_EQ(content(view_of(cache, 2), 49), content(view_of(whole, 0), 49)) << text;
    EXPECT_EQ(decode(c, view_of(cache, 2)), decode(c, view_of(whole, 0))) << text;
  }
}

TEST(ImportPages, RefusesWithNothingChanged) {
  const CacheConfig c = cache_config("mxfp4,centre=none", 1);
  Pool k(c, c.recipe.k, kDim, 0), v(c, c.recipe.v, kDim, 0);
  PagedCache cache = poisoned_cache(c);
  const auto refused = [&](PagedCache& to, std::vector<std::int32_t> ids, std::int64_t tokens) {
    return to.import_pages(1, k.pages.view(), v.pages.view(), ids, tokens).message();
  };
  EXPECT_THAT(refused(cache, {0}, 33), HasSubstr("33 tokens do not fill 1 pages of 32"));
  EXPECT_THAT(refused(cache, {0, 0}, 32), HasSubstr("do not fill 2 pages"));
  EXPECT_THAT(refused(cache, {0, 0}, 40), HasSubstr("2 pages are needed, 1 are free"));
  EXPECT_THAT(refused(cache, {0}, -1), HasSubstr("-1 tokens"));
  EXPECT_THAT(refused(cache, {1}, 3), HasSubstr("from_ids[0] is 1"));
  EXPECT_EQ(cache.free_pages(), 1);
  PagedCache other = poisoned_cache(cache_config("nvfp4,centre=none", 1));
  EXPECT_THAT(refused(other, {0}, 3), HasSubstr("k is 'mxfp4 linear"));
  PagedCache measured = poisoned_cache(cache_config("mxfp4", 1));
  EXPECT_THAT(refused(measured, {0}, 3), HasSubstr("static or none"));
  CacheConfig latent = c;
  latent.shared_kv = true;
  PagedCache shared = poisoned_cache(latent);
  EXPECT_THAT(refused(shared, {0}, 3), HasSubstr("V of this cache is part of K"));
  ASSERT_TRUE(append(cache, 1, ids_from(0, 1)).ok());
  EXPECT_THAT(refused(cache, {0}, 3), HasSubstr("holds 1 tokens"));
}

}  // namespace
}  // namespace mpfa::test
