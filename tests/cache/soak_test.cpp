// Random edits of one pool: after each step every sequence is, and attends as, a cache made from its tokens alone.
// MPFA_SOAK_STEPS sets the steps for each recipe (`make soak` takes 100000) and has the progress printed.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

constexpr int kSteps = 1500;
constexpr std::int64_t kPages = 12, kMostPages = 15, kBatch = 4, kLongest = 150;

int steps_asked() {
  const char* text = std::getenv("MPFA_SOAK_STEPS");
  return text == nullptr ? kSteps : std::max(1, std::atoi(text));
}

class Soak : public ::testing::TestWithParam<const char*> {
 protected:
  PagedCache cache = poisoned_cache(cache_config(GetParam(), kPages, kBatch));
  std::vector<Ids> ids = std::vector<Ids>(kBatch);
  bool sealed = false;
  std::mt19937 rng{99};
  std::map<std::string, int> done;                      // edits that were not refused
  std::map<std::int32_t, std::vector<std::byte>> lent;  // pages taken by write_slots, and what they must hold
  std::map<std::int32_t, std::pair<std::int64_t, std::vector<std::byte>>> stored;  // full pages, by generation

  /// Recipes whose tokens lie in the pages alone, with no mean from an append: what write_slots takes.
  [[nodiscard]] bool takes_slots() const {
    const Recipe& r = cache.config().recipe;
    return !keeps_wide_tokens(r) && r.centre != Centre::mean && r.q_centre != QCentre::mean;
  }
  [[nodiscard]] std::int64_t page_bytes() const { return cache.view().k.data_page_stride; }
  std::vector<std::byte> page(std::int32_t id) {
    return {cache.storage() + id * page_bytes(), cache.storage() + (id + 1) * page_bytes()};
  }
  [[nodiscard]] std::set<std::int32_t> used_pages() const {
    std::set<std::int32_t> used;
    const CacheView v = cache.view();
    for (std::int64_t s = 0; s < kBatch; ++s) {
      const std::int64_t pages = (v.lengths[s] + kPage - 1) / kPage;
      used.insert(v.page_table + s * v.page_table_stride, v.page_table + s * v.page_table_stride + pages);
    }
    return used;
  }

  /// Other tokens at some places of sequence s, and one in a page that belongs to no sequence.
  void write_by_slot(std::int64_t s) {
    const CacheView v = cache.view();
    const std::set<std::int32_t> used = used_pages();
    Ids changed = ids[s], written;
    std::vector<std::int64_t> slots;
    for (std::int64_t t = below(7); t < static_cast<std::int64_t>(changed.size()); t += 1 + below(40)) {
      written.push_back(changed[t] = static_cast<int>(below(kVocabulary)));
      slots.push_back(v.page_table[s * v.page_table_stride + t / kPage] * kPage + t % kPage);
    }
    const auto other = static_cast<std::int32_t>(below(cache.config().num_pages));
    if (used.count(other) == 0) {
      written.push_back(7);
      slots.push_back(other * kPage + below(kPage));
    }
    if (!cache.write_slots(keys(written).view(), values(written).view(), slots).ok()) return;
    ids[s] = changed;
    if (used.count(other) == 0) lent[other] = page(other);
    ++done["write_slots"];
  }

  void give_slots_back() {
    std::vector<std::int32_t> pages;
    for (const auto& [id, bytes] : lent) pages.push_back(id);
    EXPECT_TRUE(cache.free_slots(pages).ok());
    lent.clear();
  }

  /// Sequence s to other pages of the pool.
  void move_pages(std::int64_t s) {
    const CacheView v = cache.view();
    const std::set<std::int32_t> used = used_pages();
    std::vector<std::int32_t> from(v.page_table + s * v.page_table_stride,
                                   v.page_table + s * v.page_table_stride + (v.lengths[s] + kPage - 1) / kPage);
    std::vector<std::int32_t> to;
    for (auto id = static_cast<std::int32_t>(v.num_pages); id-- > 0 && to.size() < from.size();) {
      if (used.count(id) == 0 && lent.count(id) == 0) to.push_back(id);
    }
    if (to.size() < from.size() || from.empty()) return;
    for (std::size_t i = 0; i < to.size(); ++i) EXPECT_TRUE(cache.copy_page(from[i], to[i]).ok());
    if (cache.set_pages(s, to).ok()) ++done["move"];
  }

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
    switch (below(16)) {
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
      case 8:
        if (takes_slots()) write_by_slot(s);
        return "write_slots";
      case 9:
        if (!lent.empty() && below(3) == 0) give_slots_back();
        return "free_slots";
      case 10: move_pages(s); return "move";
      case 11:
        if (below(200) == 0 && cache.config().num_pages < kMostPages) {
          EXPECT_TRUE(cache.grow(cache.config().num_pages + 1).ok());
        }
        return "grow";
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

  /// Free pages are filled with 0xFF and counted, lent ones hold what was written.
  void check_pages() {
    const std::set<std::int32_t> used = used_pages();
    const std::int64_t pages = cache.config().num_pages;
    ASSERT_EQ(cache.free_pages(), pages - static_cast<std::int64_t>(used.size() + lent.size()));
    for (std::int32_t id = 0; id < pages; ++id) {
      if (lent.count(id) != 0) {
        ASSERT_EQ(used.count(id), 0U);
        ASSERT_EQ(page(id), lent[id]) << "a page of the caller changed";
      } else if (used.count(id) == 0) {
        std::memset(cache.storage() + id * page_bytes(), 0xFF, static_cast<std::size_t>(page_bytes()));
      }
    }
  }

  /// A full page with the generation that it had before holds the bytes that it held before.
  void check_generations() {
    const CacheView v = cache.view();
    for (std::int64_t s = 0; s < kBatch; ++s) {
      for (std::int64_t i = 0; (i + 1) * kPage <= v.sequences[s].packed_end; ++i) {
        const std::int32_t id = v.page_table[s * v.page_table_stride + i];
        const std::int64_t generation = cache.page_generation(id).value();
        auto& [known, bytes] = stored[id];
        if (known == generation) {
          ASSERT_EQ(page(id), bytes) << "page " << id << " of sequence " << s;
        }
        known = generation;
        bytes = page(id);
      }
    }
  }

  /// All sequences in one call: every row as in a call of its own.
  void check_batch() {
    const CacheConfig& c = cache.config();
    AttentionProblem p;
    p.recipe = c.recipe;
    p.batch = kBatch;
    p.max_kv = kLongest;
    p.q_heads = kQHeads;
    p.kv_heads = kKvHeads;
    p.head_dim = p.head_dim_v = kDim;
    p.page_size = kPage;
    p.threads = 2;
    const Tensor q = queries(Ids(kBatch, 7));
    AttentionTensors t;
    t.q = q.view();
    t.q.shape = {kBatch, 1, kQHeads, kDim};
    t.q.stride[0] = t.q.stride[1];
    t.cache = cache.view();
    std::vector<double> out, lse;
    const Status s = attend_cpu(p, t, out, lse);
    ASSERT_TRUE(s.ok()) << s.message();
    for (std::int64_t b = 0; b < kBatch; ++b) {
      if (ids[b].empty()) continue;
      const std::vector<double> one = decode(c, view_of(cache, b));
      ASSERT_TRUE(std::equal(one.begin(), one.begin() + kQHeads * kDim, out.begin() + b * kQHeads * kDim)) << b;
    }
  }
};

TEST_P(Soak, EverySequenceIsAsIfAlone) {
  const int steps = steps_asked();
  // Rows before the newest append read 16-bit tokens that are gone.
  const std::int64_t rows = keeps_wide_tokens(cache.config().recipe) ? 1 : 3;
  for (int i = 0; i < steps; ++i) {
    const std::int64_t s = below(kBatch);
    const std::string what = std::to_string(i) + ": " + step(s);
    if (all_empty()) sealed = false;
    ASSERT_NO_FATAL_FAILURE(check_pages()) << what;
    ASSERT_NO_FATAL_FAILURE(check_generations()) << what;
    for (std::int64_t j = 0; j < kBatch; ++j) {
      ASSERT_NO_FATAL_FAILURE(expect_fresh(cache, j, ids[j], sealed, what + " of " + std::to_string(s), rows)) << j;
    }
    if (i % 8 == 0) {
      ASSERT_NO_FATAL_FAILURE(check_batch()) << what;
    }
    if (steps > kSteps && (i + 1) % 1000 == 0) {
      std::printf("%s: %d of %d steps\n", GetParam(), i + 1, steps);
      std::fflush(stdout);
    }
  }
  for (const char* edit : {"append", "fork", "load", "truncate", "move"}) EXPECT_GT(done[edit], steps / 60) << edit;
  EXPECT_TRUE(!takes_slots() || done["write_slots"] > steps / 60);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Soak,
                         ::testing::Values("mxfp4,centre=none", "mpfa_static", "k=int8,v=mxfp4,v_mean=page,sink=2",
                                           "k=mxfp4,v=mxfp4,sink=4,recent=7",
                                           "k=nvfp4,v=mxfp4@keys,p=bf16,sink=3,recent=page",
                                           "mxfp4,centre=none,phase_switch=on,recent=5"));

}  // namespace
}  // namespace mpfa::test
