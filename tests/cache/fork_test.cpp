// Sequences that share pages: a write by one is never seen by another.
#include <gmock/gmock.h>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

TEST(Fork, SharesPagesAndCopiesOnlyWhatIsWritten) {
  PagedCache cache = poisoned_cache(cache_config("mpfa_static", 6));
  const Ids prompt = ids_from(0, 70);
  ASSERT_TRUE(append(cache, 0, prompt).ok());
  EXPECT_EQ(cache.free_pages(), 3);
  for (const std::int64_t target : {1, 2, 3}) ASSERT_TRUE(cache.fork(0, target).ok());
  EXPECT_EQ(cache.free_pages(), 3);
  // Three of four copy the last page; who is left over owns it.
  for (const std::int32_t s : {2, 0, 3, 1}) ASSERT_TRUE(append(cache, s, ids_from(100 + 10 * s, 3)).ok());
  EXPECT_EQ(cache.free_pages(), 0);
  for (const int s : {0, 1, 2, 3}) {
    expect_fresh(cache, s, joined(prompt, ids_from(100 + 10 * s, 3)), false, "fork " + std::to_string(s));
  }
  ASSERT_TRUE(cache.free_sequence(0).ok());
  EXPECT_EQ(cache.free_pages(), 1);
  for (const std::int64_t s : {1, 2, 3}) ASSERT_TRUE(cache.free_sequence(s).ok());
  EXPECT_EQ(cache.free_pages(), 6);
}

TEST(Fork, OneAppendToAllNeedsNoCopyForTheLast) {
  PagedCache cache = poisoned_cache(cache_config("nvfp4,centre=none", 2, 2));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 10)).ok());
  ASSERT_TRUE(cache.fork(0, 1).ok());
  const Ids ids = ids_from(50, 2);
  Tensor k({2, 2, kKvHeads, kDim}), v = k;
  for (Tensor* x : {&k, &v}) {
    const Tensor one = x == &k ? keys(ids) : values(ids);
    std::copy(one.data.begin(), one.data.end(), x->data.begin());
    std::copy(one.data.begin(), one.data.end(), x->data.begin() + static_cast<std::int64_t>(one.data.size()));
  }
  ASSERT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
  EXPECT_EQ(cache.free_pages(), 0);
  for (const int s : {0, 1}) expect_fresh(cache, s, joined(ids_from(0, 10), ids), false, "both");
}

TEST(Fork, PoolWithoutPagesForTheCopyChangesNothing) {
  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none", 1, 2));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 10)).ok());
  ASSERT_TRUE(cache.fork(0, 1, 9).ok());
  const Status s = append(cache, 1, ids_from(90, 1));
  EXPECT_EQ(s.code(), StatusCode::out_of_memory);
  EXPECT_THAT(s.message(), HasSubstr("1 more pages of 32 tokens are needed, 0 are free"));
  expect_fresh(cache, 0, ids_from(0, 10), false, "source");
  expect_fresh(cache, 1, ids_from(0, 9), false, "target");
  ASSERT_TRUE(cache.free_sequence(0).ok());
  EXPECT_TRUE(append(cache, 1, ids_from(90, 1)).ok());
}

TEST(Fork, SealCopiesSharedPages) {
  PagedCache cache = poisoned_cache(cache_config("mxattention", 3, 2));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 40)).ok());
  ASSERT_TRUE(cache.fork(0, 1, 35).ok());
  EXPECT_THAT(cache.seal().message(), HasSubstr("2 pages that forks share"));
  expect_fresh(cache, 0, ids_from(0, 40), false, "unsealed");
  ASSERT_TRUE(cache.grow(4).ok());
  ASSERT_TRUE(cache.seal().ok());
  expect_fresh(cache, 0, ids_from(0, 40), true, "source");
  expect_fresh(cache, 1, ids_from(0, 35), true, "target");
}

TEST(Fork, ErrorsSayWhatIsAllowed) {
  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none"));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 40)).ok());
  EXPECT_EQ(cache.fork(0, 0).message(), "fork: sequence 0 holds 40 tokens; free it, or take an empty one");
  EXPECT_EQ(cache.fork(9, 1).code(), StatusCode::out_of_range);
  EXPECT_EQ(cache.fork(0, -1).code(), StatusCode::out_of_range);
  EXPECT_THAT(cache.fork(0, 1, 41).message(), HasSubstr("41 tokens are not in 0..40"));
  ASSERT_TRUE(cache.fork(0, 1).ok());
  EXPECT_THAT(cache.set_pages(1, {4, 5}).message(), HasSubstr("page 0 of the sequence is shared by 2 sequences"));
  EXPECT_THAT(cache.copy_page(5, 1).message(), HasSubstr("page 1 is shared by 2 sequences"));
  EXPECT_TRUE(cache.copy_page(0, 5).ok());
  ASSERT_TRUE(cache.free_sequence(0).ok());
  ASSERT_TRUE(cache.copy_page(1, 6).ok());
  EXPECT_TRUE(cache.set_pages(1, {5, 6}).ok());
  expect_fresh(cache, 1, ids_from(0, 40), false, "moved");
}

}  // namespace
}  // namespace mpfa::test
