// Random edits of one pool: after each step every sequence is what a cache made from its tokens alone would be.
#include <map>
#include <random>
#include <set>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

constexpr int kSteps = 2000;
constexpr std::int64_t kPages = 12, kBatch = 4, kLongest = 150;

class Soak : public ::testing::TestWithParam<const char*> {
 protected:
  PagedCache cache = poisoned_cache(cache_config(GetParam(), kPages, kBatch));
  std::vector<Ids> ids = std::vector<Ids>(kBatch);
  bool sealed = false;
  std::mt19937 rng{99};
  std::map<std::string, int> done;  // edits that were not refused

  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(n)); }

  [[nodiscard]] bool all_empty() const {
    return std::all_of(ids.begin(), ids.end(), [](const Ids& x) { return x.empty(); });
  }
  /// An empty sequence, or else any: edits of that one are refused.
  std::int64_t an_empty_one() {
    const auto it = std::find_if(ids.begin(), ids.end(), [](const Ids& x) { return x.empty(); });
    return it == ids.end() ? below(kBatch) : it - ids.begin();
  }

  /// One random edit, of cache and model alike; returns what it was.
  std::string step(std::int64_t s) {
    Ids& mine = ids[s];
    const auto length = static_cast<std::int64_t>(mine.size());
    switch (below(12)) {
      case 0:
      case 1: {
        const std::int64_t target = an_empty_one();
        const std::int64_t n = below(2) == 0 ? length : below(length + 1);
        if (cache.fork(s, target, n).ok()) {
          ids[target] = Ids(mine.begin(), mine.begin() + n);
          ++done["fork"];
        }
        return "fork";
      }
      case 2:
      case 3: {
        const std::int64_t n = below(3) == 0 ? below(length + 1) : std::max<std::int64_t>(0, length - below(8));
        if (cache.truncate(s, n).ok()) {
          mine.resize(static_cast<std::size_t>(n));
          ++done["truncate"];
        }
        return "truncate";
      }
      case 4:
      case 5:
        EXPECT_TRUE(cache.free_sequence(s).ok());
        mine.clear();
        return "free";
      case 6: {
        std::vector<std::byte> blob;
        EXPECT_TRUE(cache.save(blob, s).ok());
        const std::int64_t target = below(2) == 0 ? s : an_empty_one();
        EXPECT_TRUE(target != s || cache.free_sequence(s).ok());
        if (cache.load(blob, target).ok()) {
          ids[target] = Ids(mine);
          ++done["load"];
        } else if (target == s) {
          mine.clear();  // its pages were shared: a copy of its own did not fit
        }
        return "save and load";
      }
      case 7:
        // With tokens only: an empty cache that was sealed would start its next request so.
        if (!all_empty()) sealed = (cache.seal().ok() && cache.config().recipe.phase_switch) || sealed;
        return "seal";
      default: {
        const std::int64_t n = std::min(kLongest - length, 1 + below(below(3) == 0 ? 60 : 6));
        const Ids more = ids_from(static_cast<int>(below(kVocabulary)), n);
        if (append(cache, static_cast<std::int32_t>(s), more).ok()) {
          mine.insert(mine.end(), more.begin(), more.end());
          ++done["append"];
        }
        return "append";
      }
    }
  }

  /// Free pages are filled with 0xFF and counted.
  void poison_free_pages() {
    std::set<std::int32_t> used;
    const CacheView v = cache.view();
    for (std::int64_t s = 0; s < kBatch; ++s) {
      const std::int64_t pages = (v.lengths[s] + kPage - 1) / kPage;
      used.insert(v.page_table + s * v.page_table_stride, v.page_table + s * v.page_table_stride + pages);
    }
    ASSERT_EQ(cache.free_pages(), kPages - static_cast<std::int64_t>(used.size()));
    const std::int64_t bytes = cache.storage_bytes() / kPages;
    for (std::int32_t id = 0; id < kPages; ++id) {
      if (used.count(id) == 0) std::memset(cache.storage() + id * bytes, 0xFF, static_cast<std::size_t>(bytes));
    }
  }
};

TEST_P(Soak, EverySequenceIsAsIfAlone) {
  for (int i = 0; i < kSteps; ++i) {
    const std::int64_t s = below(kBatch);
    const std::string what = std::to_string(i) + ": " + step(s);
    if (all_empty()) sealed = false;
    ASSERT_NO_FATAL_FAILURE(poison_free_pages()) << what;
    for (std::int64_t j = 0; j < kBatch; ++j) {
      ASSERT_NO_FATAL_FAILURE(expect_fresh(cache, j, ids[j], sealed, what + " of " + std::to_string(s))) << j;
    }
  }
  for (const char* edit : {"append", "fork", "load", "truncate"}) EXPECT_GT(done[edit], 50) << edit;
}

INSTANTIATE_TEST_SUITE_P(Recipes, Soak,
                         ::testing::Values("mxfp4,centre=none", "mpfa_static", "k=int8,v=mxfp4,v_mean=page,sink=2",
                                           "k=mxfp4,v=mxfp4,sink=4,recent=7",
                                           "k=nvfp4,v=mxfp4@keys,p=bf16,sink=3,recent=page",
                                           "mxfp4,centre=none,phase_switch=on,recent=5"));

}  // namespace
}  // namespace mpfa::test
