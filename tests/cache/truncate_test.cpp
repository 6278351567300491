// Dropping tokens: what follows has the bits of a cache that never saw them.
#include <gmock/gmock.h>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

class Truncate : public ::testing::TestWithParam<const char*> {};

TEST_P(Truncate, DraftTokensAtEveryOffsetLeaveNoTrace) {
  for (const bool sealed : {false, true}) {
    if (sealed && !recipe(GetParam()).phase_switch) continue;
    for (std::int64_t offset = 0; offset < 3 * kPage; offset += offset < kPage ? 1 : 5) {
      PagedCache cache = poisoned_cache(cache_config(GetParam()));
      const Ids prompt = ids_from(0, offset);
      ASSERT_TRUE(append(cache, 1, prompt).ok());
      ASSERT_TRUE(!sealed || cache.seal().ok());
      ASSERT_TRUE(append(cache, 1, ids_from(200, 8)).ok());
      Status s = cache.truncate(1, offset + 3);
      ASSERT_TRUE(s.ok()) << s.message();
      const std::string what = std::string(GetParam()) + " at " + std::to_string(offset);
      expect_fresh(cache, 1, joined(prompt, ids_from(200, 3)), sealed, what + " after truncate");
      ASSERT_TRUE(append(cache, 1, ids_from(300, 5)).ok());
      const Ids accepted = joined(joined(prompt, ids_from(200, 3)), ids_from(300, 5));
      // A cache sealed a moment ago answers for its last row only.
      expect_fresh(cache, 1, accepted, sealed, what + " after append", sealed ? 1 : 5);

      // The whole of the last append can go as well.
      s = cache.truncate(1, offset + 3);
      ASSERT_TRUE(s.ok()) << s.message();
      ASSERT_TRUE(append(cache, 1, ids_from(400, 40)).ok());
      expect_fresh(cache, 1, joined(joined(prompt, ids_from(200, 3)), ids_from(400, 40)), sealed, what);
    }
  }
}

TEST_P(Truncate, EveryLengthIsExactOrRefused) {
  const Ids all = ids_from(0, 90);
  std::int64_t exact = 0;
  for (std::int64_t length = 0; length <= 90; ++length) {
    PagedCache cache = poisoned_cache(cache_config(GetParam()));
    for (std::int64_t t = 0; t < 90; t += 5) ASSERT_TRUE(append(cache, 0, ids_from(static_cast<int>(t), 5)).ok());
    const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
    const Status s = cache.truncate(0, length);
    Ids kept(all.begin(), all.begin() + length);
    if (!s.ok()) {
      EXPECT_EQ(s.code(), StatusCode::invalid_argument);
      EXPECT_THAT(s.message(), HasSubstr("allowed lengths: 0"));
      EXPECT_THAT(s.message(), HasSubstr(" to 90"));
      EXPECT_EQ(std::memcmp(before.data(), cache.storage(), before.size()), 0);
      kept = all;
    } else {
      ++exact;
      EXPECT_EQ(cache.free_pages(), 16 - (length + kPage - 1) / kPage);
    }
    expect_fresh(cache, 0, kept, false, std::string(GetParam()) + " to " + std::to_string(length));
    ASSERT_TRUE(append(cache, 0, ids_from(300, 37)).ok());
    expect_fresh(cache, 0, joined(kept, ids_from(300, 37)), false, GetParam());
  }
  const Recipe r = recipe(GetParam());
  const bool always = !keeps_wide_tokens(r) || r.phase_switch;
  EXPECT_TRUE(always ? exact == 91 : exact > 6 + r.sink) << exact;
}

INSTANTIATE_TEST_SUITE_P(Recipes, Truncate,
                         ::testing::Values("mxfp4,centre=none", "k=nvfp4,v=nvfp4@keys,p=bf16",
                                           "k=mxfp4,v=mxfp4,sink=4,recent=7", "mxattention", "mpfa_static",
                                           "k=nvfp4,v=mxfp4@keys,p=bf16,sink=3,recent=page",
                                           "mxfp4,centre=none,phase_switch=on,recent=5", "kv=mxfp4,v_mean=page",
                                           "kv=nvfp4,v_mean=page,rotate=qkv,sink=3,recent=5"));

TEST(TruncateErrors, SayWhichLengthsArePossible) {
  PagedCache cache = poisoned_cache(cache_config("k=nvfp4,v=nvfp4@keys,p=bf16"));
  for (int t = 0; t < 60; ++t) ASSERT_TRUE(append(cache, 0, ids_from(t, 1)).ok());
  EXPECT_EQ(cache.truncate(0, 47).message(),
            "truncate: at 47 tokens the recipe has tokens from 32 on in 16 bits, but those before 48 exist as codes "
            "only; allowed lengths: 0, multiples of 16, 48 to 60; take one of them and append the rest again");
  EXPECT_THAT(cache.truncate(0, 61).message(), HasSubstr("61 tokens are not in 0..60"));
  EXPECT_EQ(cache.truncate(4, 0).code(), StatusCode::out_of_range);
  EXPECT_TRUE(cache.truncate(0, 32).ok());
  EXPECT_TRUE(cache.truncate(0, 0).ok());
  EXPECT_EQ(cache.free_pages(), 16);
}

TEST(TruncateMeans, StayUntilTheSequenceIsEmpty) {
  PagedCache cache = poisoned_cache(cache_config("mxfp4"));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 40)).ok());
  const float mean = cache.view().sequences[0].k_mean[5];
  ASSERT_TRUE(cache.truncate(0, 3).ok());
  ASSERT_TRUE(append(cache, 0, ids_from(100, 3)).ok());
  EXPECT_EQ(cache.view().sequences[0].k_mean[5], mean);
  ASSERT_TRUE(cache.truncate(0, 0).ok());
  EXPECT_EQ(cache.view().sequences[0].k_mean, nullptr);
}

}  // namespace
}  // namespace mpfa::test
