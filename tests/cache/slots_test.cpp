// Writes by physical slot: the bytes of append, wherever a scheduler wants them.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

Status write(PagedCache& cache, const Ids& ids, const std::vector<std::int64_t>& slots) {
  return cache.write_slots(keys(ids).view(), values(ids).view(), slots);
}

TEST(WriteSlots, HoldsWhatAppendHolds) {
  for (const char* text : {"mpfa_static", "mxfp4,centre=none", "fp8", "bf16", "turboquant_4bit"}) {
    PagedCache cache = poisoned_cache(cache_config(text, 5));
    const Ids ids = ids_from(0, 50);
    const std::int32_t table[] = {3, 1};
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < 50; ++t) slots.push_back(table[t / kPage] * kPage + t % kPage);
    // In three calls, out of order.
    for (const auto& [first, n] : {std::pair<std::int64_t, std::int64_t>{30, 20}, {0, 7}, {7, 23}}) {
      ASSERT_TRUE(
          write(cache, ids_from(static_cast<int>(first), n), {slots.begin() + first, slots.begin() + first + n}).ok());
    }
    EXPECT_EQ(cache.free_pages(), 3);
    EXPECT_EQ(cache.lengths()[0], 0);
    const PagedCache fresh = fresh_cache(cache.config(), ids, false);
    const std::int64_t length = 50;
    SequenceView sequence;
    sequence.k_mean = cache.config().k_mean.empty() ? nullptr : cache.config().k_mean.data();
    sequence.q_mean = cache.config().q_mean.empty() ? nullptr : cache.config().q_mean.data();
    sequence.packed_end = sequence.wide_begin = length;
    // grow() keeps pages that were written by slot.
    ASSERT_TRUE(cache.grow(7).ok());
    CacheView v = cache.view();
    v.page_table = table;
    v.page_table_stride = 2;
    v.lengths = &length;
    v.sequences = &sequence;
    EXPECT_EQ(content(v, length), content(view_of(fresh, 0), length)) << text;
    EXPECT_EQ(decode(cache.config(), v), decode(cache.config(), view_of(fresh, 0))) << text;
  }
}

TEST(WriteSlots, SkippedTokensTouchNothing) {
  PagedCache cache = poisoned_cache(cache_config("mpfa_static", 4));
  const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
  ASSERT_TRUE(write(cache, ids_from(0, 3), {-1, -1, -1}).ok());
  EXPECT_EQ(std::memcmp(before.data(), cache.storage(), before.size()), 0);
  EXPECT_EQ(cache.free_pages(), 4);
  // A padded token may hold anything.
  Tensor k = keys(ids_from(0, 2));
  std::fill(k.data.begin(), k.data.begin() + kKvHeads * kDim, NAN);
  const std::vector<std::int64_t> slots{-1, 2 * kPage + 5};
  ASSERT_TRUE(cache.write_slots(k.view(), values(ids_from(0, 2)).view(), slots).ok());
  EXPECT_EQ(cache.counters().nonfinite_blocks, 0);
  EXPECT_EQ(cache.free_pages(), 3);
  EXPECT_TRUE(write(cache, {}, {}).ok());
}

TEST(WriteSlots, PagesAreTheCallersUntilGivenBack) {
  PagedCache cache = poisoned_cache(cache_config("fp8", 3));
  ASSERT_TRUE(write(cache, ids_from(0, 1), {0}).ok());
  ASSERT_TRUE(append(cache, 0, ids_from(0, 64)).ok());
  EXPECT_EQ(cache.view().page_table[0], 1);
  EXPECT_EQ(append(cache, 1, ids_from(0, 1)).code(), StatusCode::out_of_memory);
  const std::vector<std::int32_t> mine{0}, twice{0, 0}, other{0, 1}, outside{3};
  EXPECT_THAT(cache.free_slots(twice).message(), HasSubstr("page 0 is given twice"));
  EXPECT_THAT(cache.free_slots(other).message(), HasSubstr("page 1 is free or belongs to a sequence"));
  EXPECT_EQ(cache.free_slots(outside).code(), StatusCode::out_of_range);
  ASSERT_TRUE(cache.free_slots(mine).ok());
  EXPECT_TRUE(append(cache, 1, ids_from(0, 1)).ok());
  // A sequence's own slots may be overwritten: token 1 of sequence 0 becomes another.
  ASSERT_TRUE(write(cache, {9}, {kPage + 1}).ok());
  Ids ids = ids_from(0, 64);
  ids[1] = 9;
  expect_fresh(cache, 0, ids, false, "overwritten");
}

TEST(WriteSlots, ErrorsSayWhatIsAllowedAndWriteNothing) {
  for (const char* text : {"k=nvfp4,v=nvfp4@keys,p=bf16", "mxfp4,centre=none,recent=4", "mxattention"}) {
    PagedCache cache = poisoned_cache(cache_config(text));
    EXPECT_THAT(write(cache, ids_from(0, 1), {0}).message(), HasSubstr("keeps tokens in bf16"));
  }
  PagedCache mean = poisoned_cache(cache_config("mxfp4"));
  EXPECT_THAT(write(mean, ids_from(0, 1), {0}).message(), HasSubstr("takes means from the first append"));

  PagedCache cache = poisoned_cache(cache_config("mxfp4,centre=none", 4));
  ASSERT_TRUE(append(cache, 0, ids_from(0, 40)).ok());
  ASSERT_TRUE(cache.fork(0, 1).ok());
  const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
  EXPECT_THAT(write(cache, ids_from(0, 2), {64, 128}).message(),
              HasSubstr("slot_mapping[1] is 128; 4 pages of 32 tokens have slots 0..127"));
  EXPECT_EQ(write(cache, ids_from(0, 2), {64, -2}).code(), StatusCode::out_of_range);
  EXPECT_THAT(write(cache, ids_from(0, 2), {70, 70}).message(), HasSubstr("slot 70 is given twice"));
  EXPECT_THAT(write(cache, ids_from(0, 2), {70, 33}).message(), HasSubstr("page 1, which 2 sequences share"));
  EXPECT_THAT(write(cache, ids_from(0, 2), {70}).message(), HasSubstr("write_slots: k has shape [1, 2, 2, 32]"));
  EXPECT_EQ(std::memcmp(before.data(), cache.storage(), before.size()), 0);
  EXPECT_EQ(cache.free_pages(), 2);
}

}  // namespace
}  // namespace mpfa::test
