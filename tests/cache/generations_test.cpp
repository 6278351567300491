// Generations of pages: a stored id is refused once its page may hold other tokens, and not before.
#include <gmock/gmock.h>

#include "tests/cache/rope_tables.hpp"
#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Generations = std::vector<std::int64_t>;

Generations generations(const PagedCache& cache, const std::vector<std::int32_t>& pages) {
  Generations all;
  for (const std::int32_t id : pages) all.push_back(cache.page_generation(id).value());
  return all;
}

TEST(Generations, StaleIdsAreRefusedAndChangeNothing) {
  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none", 8));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 64)).ok());
  ASSERT_TRUE(append(cache, 1, ids_from(90, 64)).ok());
  const Generations stored = generations(cache, {0, 1});
  ASSERT_TRUE(cache.free_sequence(0).ok());
  // Free pages: without generations they are taken, whatever they hold.
  EXPECT_EQ(cache.set_pages(1, {0, 1}, stored).message(),
            "set_pages: page 0 was given back since its id was stored (generation 2, expected 1); drop the entry that "
            "names it");
  // The same pages are those of another sequence, which could not be seen before.
  ASSERT_TRUE(append(cache, 2, ids_from(200, 64)).ok());
  EXPECT_EQ(cache.set_pages(2, {0, 1}, stored).message(),
            "set_pages: page 0 was given out again or overwritten since its id was stored (generation 3, expected 1); "
            "drop the entry that names it");
  EXPECT_TRUE(cache.set_pages(2, {0, 1}).ok());
  expect_fresh(cache, 1, ids_from(90, 64), false, "refused");
  expect_fresh(cache, 2, ids_from(200, 64), false, "refused");
}

TEST(Generations, StayWhileAPageIsHeld) {
  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none", 8));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 40)).ok());
  const Generations stored = generations(cache, {0, 1});
  ASSERT_TRUE(append(cache, 0, ids_from(40, 20)).ok());
  ASSERT_TRUE(cache.fork(0, 1).ok());
  ASSERT_TRUE(append(cache, 1, ids_from(60, 1)).ok());  // into a copy of page 1
  ASSERT_TRUE(cache.truncate(1, 32).ok());
  ASSERT_TRUE(cache.free_sequence(1).ok());
  ASSERT_TRUE(cache.fork(0, 1).ok());
  ASSERT_TRUE(cache.free_sequence(0).ok());
  ASSERT_TRUE(cache.grow(9).ok());
  EXPECT_TRUE(cache.set_pages(1, {1, 0}, Generations{stored[1], stored[0]}).ok());
  EXPECT_TRUE(cache.set_pages(1, {0, 1}, stored).ok());
  EXPECT_EQ(generations(cache, {0, 1}), stored);
  expect_fresh(cache, 1, ids_from(0, 60), false, "held");
}

TEST(Generations, StayWhileAnotherHolderKeepsItsNewTokensBesideThePage) {
  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none,recent=32", 8));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 64)).ok());
  const Generations stored = generations(cache, {0, 1});
  ASSERT_TRUE(cache.fork(0, 1, 60).ok());
  ASSERT_TRUE(append(cache, 1, ids_from(300, 1)).ok());
  EXPECT_EQ(generations(cache, {0, 1}), stored);
}

TEST(Generations, RiseWhenTokensAreOverwritten) {
  const RopeTables tables(64, kDim / 2);
  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none", 8));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 90)).ok());
  Generations last = generations(cache, {0, 1, 2});
  /// Which of the three pages have another generation than before.
  const auto raised = [&] {
    const Generations now = generations(cache, {0, 1, 2});
    std::vector<int> pages;
    for (int i = 0; i < 3; ++i) {
      if (now[i] != last[i]) pages.push_back(i);
    }
    last = now;
    return pages;
  };
  ASSERT_TRUE(cache.truncate(0, 70).ok());
  EXPECT_THAT(raised(), ElementsAre());  // the dropped tokens are still there
  ASSERT_TRUE(append(cache, 0, ids_from(300, 5)).ok());
  EXPECT_THAT(raised(), ElementsAre(2));
  ASSERT_TRUE(append(cache, 0, ids_from(305, 5)).ok());
  EXPECT_THAT(raised(), ElementsAre());
  // The fork with fewer tokens is the last holder, and writes in place.
  ASSERT_TRUE(cache.fork(0, 1, 66).ok());
  ASSERT_TRUE(cache.free_sequence(0).ok());
  EXPECT_THAT(raised(), ElementsAre());
  ASSERT_TRUE(append(cache, 1, ids_from(400, 5)).ok());
  EXPECT_THAT(raised(), ElementsAre(2));
  ASSERT_TRUE(cache.shift(1, 40, 3, tables.rope(RopeStyle::half)).ok());
  EXPECT_THAT(raised(), ElementsAre(1, 2));
  ASSERT_TRUE(cache.remove(1, 33, 35).ok());
  EXPECT_THAT(raised(), ElementsAre(1, 2));
  ASSERT_TRUE(cache.copy_page(0, 1).ok());
  EXPECT_THAT(raised(), ElementsAre(1));
  ASSERT_TRUE(cache.write_slots(keys({9}).view(), values({9}).view(), std::vector<std::int64_t>{3}).ok());
  EXPECT_THAT(raised(), ElementsAre(0));
}

TEST(Generations, OfFreePagesRiseWithGrow) {
  PagedCache cache = poisoned_cache(cache_config("fp8", 3));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 10)).ok());
  ASSERT_TRUE(cache.copy_page(0, 2).ok());
  const Generations copy = generations(cache, {2});
  ASSERT_TRUE(cache.grow(4).ok());
  EXPECT_THAT(cache.set_pages(0, {2}, copy).message(), HasSubstr("page 2 was given back"));
}

TEST(Generations, ErrorsSayWhatIsAllowed) {
  PagedCache cache = poisoned_cache(cache_config("fp8", 4));
  EXPECT_EQ(cache.page_generation(4).status().message(),
            "page_generation: page 4 is out of range; page ids are in 0..3");
  EXPECT_EQ(cache.page_generation(-1).status().code(), StatusCode::out_of_range);
  ASSERT_TRUE(append(cache, 0, ids_from(0, 10)).ok());
  EXPECT_EQ(cache.set_pages(0, {0}, Generations{}).message(),
            "set_pages: 0 generations given for 1 pages; one for each is needed");
  EXPECT_EQ(cache.set_pages(0, {4}, Generations{0}).code(), StatusCode::out_of_range);
  // A page of the caller that it gave back and that another part of it got since.
  const std::vector<std::int32_t> mine{3};
  const auto lend = [&] {
    return cache.write_slots(keys({1}).view(), values({1}).view(), std::vector<std::int64_t>{3 * kPage});
  };
  const Generations unused = generations(cache, mine);
  ASSERT_TRUE(lend().ok());
  EXPECT_THAT(cache.free_slots(mine, unused).message(), HasSubstr("page 3 was given out again"));
  const Generations stored = generations(cache, mine);
  ASSERT_TRUE(lend().ok());
  ASSERT_TRUE(cache.free_slots(mine, stored).ok());
  ASSERT_TRUE(lend().ok());
  EXPECT_THAT(cache.free_slots(mine, stored).message(), HasSubstr("free_slots: page 3 was given out again"));
  EXPECT_EQ(cache.free_pages(), 2);
}

}  // namespace
}  // namespace mpfa::test
