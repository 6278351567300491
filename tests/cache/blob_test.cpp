// Saved sequences: the same bits after load, and no blob that does harm.
#include "cache/blob.hpp"

#include <gmock/gmock.h>

#include <random>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;
using Blob = std::vector<std::byte>;

void sign(Blob& blob) {
  const std::uint64_t sum = blob_checksum(std::span(blob).first(blob.size() - kBlobTail));
  std::memcpy(blob.data() + blob.size() - kBlobTail, &sum, sizeof sum);
}

Blob saved(const PagedCache& cache, std::int64_t sequence) {
  Blob blob{std::byte{1}};
  EXPECT_TRUE(cache.save(blob, sequence).ok());
  return blob;
}

class SaveLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(SaveLoad, ContinuesInAnotherCache) {
  for (const bool sealed : {false, true}) {
    if (sealed && !recipe(GetParam()).phase_switch) continue;
    for (const std::int64_t length : {1, 31, 32, 45, 96}) {
      PagedCache from = poisoned_cache(cache_config(GetParam(), 16));
      const Ids ids = ids_from(0, length);
      ASSERT_TRUE(append(from, 2, ids).ok());
      ASSERT_TRUE(!sealed || from.seal().ok());
      PagedCache to = poisoned_cache(cache_config(GetParam(), 9, 2));
      const Blob blob = saved(from, 2);
      const Status s = to.load(blob, 1);
      ASSERT_TRUE(s.ok()) << s.message();
      expect_fresh(to, 1, ids, sealed, GetParam());
      EXPECT_EQ(saved(to, 1), blob);
      ASSERT_TRUE(append(to, 1, ids_from(300, 40)).ok());
      expect_fresh(to, 1, joined(ids, ids_from(300, 40)), sealed, GetParam());
    }
  }
}

TEST_P(SaveLoad, HoldsNoByteOfOthers) {
  // The same tokens in a pool full of 0xFF and in one full of 0x55.
  PagedCache one = poisoned_cache(cache_config(GetParam()));
  PagedCache two = PagedCache::create(cache_config(GetParam())).value();
  std::memset(two.storage(), 0x55, static_cast<std::size_t>(two.storage_bytes()));
  for (PagedCache* cache : {&one, &two}) ASSERT_TRUE(append(*cache, 0, ids_from(0, 50)).ok());
  EXPECT_EQ(saved(one, 0), saved(two, 0));
}

TEST_P(SaveLoad, DamagedBlobsAreRefused) {
  PagedCache cache = poisoned_cache(cache_config(GetParam(), 8));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 40)).ok());
  const Blob blob = saved(cache, 0);
  const Blob storage(cache.storage(), cache.storage() + cache.storage_bytes());
  const auto refuse = [&](const Blob& bad) {
    ASSERT_FALSE(cache.load(bad, 1).ok());
    ASSERT_EQ(cache.lengths()[1], 0);
    ASSERT_EQ(cache.free_pages(), 6);
  };
  const std::size_t step = blob.size() / 500 + 1;
  for (std::size_t n = 0; n < blob.size(); n += n < 600 ? 1 : step) refuse({blob.begin(), blob.begin() + n});
  for (std::size_t i = 0; i < blob.size(); i += i < 600 ? 1 : step) {
    Blob bad = blob;
    bad[i] ^= std::byte{0x10};
    refuse(bad);
  }
  // A correct checksum over a shorter blob, or over sizes and lengths that are not those of the content.
  for (std::size_t n = kBlobHead + kBlobTail; n < blob.size(); n += n < 600 ? 1 : step) {
    Blob bad(blob.begin(), blob.begin() + n);
    const auto size = static_cast<std::int64_t>(n);
    std::memcpy(bad.data() + 16, &size, sizeof size);
    sign(bad);
    refuse(bad);
  }
  EXPECT_EQ(std::memcmp(storage.data(), cache.storage(), storage.size()), 0);
  std::mt19937 rng(5);
  for (int i = 0; i < 4000; ++i) {
    Blob bad = blob;
    const std::size_t at = rng() % std::min<std::size_t>(bad.size(), 900);
    const std::int64_t values[] = {-1, 0, 1, 41, 1LL << 40, INT64_MAX, INT64_MIN, static_cast<std::int64_t>(rng())};
    std::memcpy(bad.data() + at, &values[rng() % 8], std::min<std::size_t>(8, bad.size() - at));
    sign(bad);
    // Means and 16-bit tokens may be any number; whatever is taken must be fit to be read.
    if (!cache.load(bad, 1).ok()) continue;
    ASSERT_EQ(cache.lengths()[1], 40);
    decode(cache.config(), view_of(cache, 1));
    ASSERT_TRUE(cache.free_sequence(1).ok());
  }
  expect_fresh(cache, 0, ids_from(0, 40), false, "untouched");
}

INSTANTIATE_TEST_SUITE_P(Recipes, SaveLoad,
                         ::testing::Values("mxfp4,centre=none", "k=nvfp4,v=nvfp4@keys,p=bf16",
                                           "k=mxfp4,v=mxfp4,sink=4,recent=7", "mxattention", "mpfa_static",
                                           "k=int4_tile16,v=nvfp4@keys,p=bf16", "turboquant_4bit",
                                           "kv=mxfp4,v_mean=page"));

TEST(Load, NamesTheMismatch) {
  const CacheConfig ours = cache_config("mxfp4,centre=none");
  PagedCache from = poisoned_cache(ours);
  ASSERT_TRUE(append(from, 0, ids_from(0, 40)).ok());
  const Blob blob = saved(from, 0);
  const auto message = [&](const CacheConfig& c, const Blob& b) {
    PagedCache to = poisoned_cache(c);
    return to.load(b, 0).message();
  };
  EXPECT_EQ(
      message(cache_config("nvfp4,centre=none"), blob),
      "load: the blob's recipe is 'mxfp4,centre=none', the cache's is 'nvfp4,centre=none'; load into a cache made "
      "with the blob's");
  CacheConfig other = ours;
  other.page_size = 16;
  EXPECT_THAT(message(other, blob), HasSubstr("page_size is 32, the cache's is 16"));
  other = ours;
  other.q_heads = 8;
  EXPECT_THAT(message(other, blob), HasSubstr("q_heads is 4, the cache's is 8"));
  other = ours;
  other.head_dim_v = 16;
  EXPECT_THAT(message(other, blob), HasSubstr("head_dim_v is 32, the cache's is 16"));
  other = ours;
  other.k_global = {1.0F, 2.0F};
  EXPECT_THAT(message(other, blob), HasSubstr("k_global is 0 values, the cache's is 2 values"));
  other = ours;
  other.num_pages = 1;
  EXPECT_THAT(message(other, blob), HasSubstr("2 pages of 32 tokens are needed, 1 are free"));
  EXPECT_THAT(from.load(blob, 0).message(), HasSubstr("sequence 0 holds 40 tokens"));
  Blob split = blob;
  const std::string_view text(reinterpret_cast<const char*>(blob.data()), blob.size());
  std::memcpy(split.data() + text.find("interleaved"), "not-a-order", 11);
  sign(split);
  EXPECT_THAT(message(ours, split), HasSubstr("nibble order is 'not-a-order', the cache's is 'interleaved'"));
}

TEST(Load, KeepsThePhaseOfTheCache) {
  PagedCache before = poisoned_cache(cache_config("mxattention"));
  ASSERT_TRUE(append(before, 0, ids_from(0, 40)).ok());
  const Blob wide = saved(before, 0);
  ASSERT_TRUE(before.seal().ok());
  EXPECT_THAT(before.load(wide, 1).message(),
              HasSubstr("saved before seal() and this cache is sealed; load into an empty cache"));
  PagedCache open = poisoned_cache(cache_config("mxattention"));
  ASSERT_TRUE(append(open, 0, ids_from(0, 4)).ok());
  EXPECT_THAT(open.load(saved(before, 0), 1).message(), HasSubstr("seal it, or load into an empty cache"));
  ASSERT_TRUE(open.load(wide, 1).ok());
  ASSERT_TRUE(open.seal().ok());
  expect_fresh(open, 1, ids_from(0, 40), true, "sealed after load");
}

}  // namespace
}  // namespace mpfa::test
