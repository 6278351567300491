// The heap is full at any one allocation of a call: the call says so, nothing has changed, and it works when asked
// again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "tests/cache/sequences.hpp"

namespace {

/// Allocations left until the next one fails; negative: none fails.
thread_local std::int64_t g_countdown = -1;

void* allocate(std::size_t n, std::size_t alignment) {
  if (g_countdown >= 0 && g_countdown-- == 0) throw std::bad_alloc();
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(n == 0 ? 1 : n)
                : std::aligned_alloc(alignment, (n + alignment) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(std::size_t n) {
  return allocate(n, 1);
}
void* operator new[](std::size_t n) {
  return allocate(n, 1);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace mpfa::test {
namespace {

class FullHeap : public ::testing::TestWithParam<const char*> {
 protected:
  using Call = std::function<Status(PagedCache&)>;

  /// Sequence 0 has 45 tokens, 1 shares them, 2 and 3 are empty.
  static PagedCache make() {
    CacheConfig c = cache_config(GetParam(), 12);
    c.threads = 1;
    PagedCache cache = poisoned_cache(c);
    EXPECT_TRUE(append(cache, 0, ids_from(0, 45)).ok());
    EXPECT_TRUE(cache.fork(0, 1).ok());
    return cache;
  }
  static std::vector<std::vector<std::byte>> state(const PagedCache& cache) {
    std::vector<std::vector<std::byte>> all;
    for (std::int64_t s = 0; s < 4; ++s) EXPECT_TRUE(cache.save(all.emplace_back(), s).ok());
    all.emplace_back(static_cast<std::size_t>(cache.free_pages()));
    all.emplace_back(static_cast<std::size_t>(cache.config().num_pages));
    return all;
  }

  /// Runs `call` with the n-th allocation failing, for every n that it reaches.
  static void expect_all_or_nothing(const char* what, const Call& call) {
    PagedCache reference = make();
    ASSERT_TRUE(call(reference).ok()) << what;
    const auto before = state(make()), after = state(reference);
    for (std::int64_t n = 0;; ++n) {
      PagedCache cache = make();
      Status s;
      g_countdown = n;
      try {
        s = call(cache);
      } catch (const std::bad_alloc&) {
        g_countdown = -1;
        FAIL() << what << ": allocation " << n << " left the library as an exception";
      }
      const bool reached = g_countdown < 0;
      g_countdown = -1;
      if (s.ok()) {
        ASSERT_EQ(state(cache), after) << what << ": allocation " << n;
        if (!reached) return;
        continue;
      }
      ASSERT_EQ(s.code(), StatusCode::out_of_memory) << what << ": " << s.message();
      ASSERT_EQ(state(cache), before) << what << ": allocation " << n;
      ASSERT_TRUE(call(cache).ok()) << what;
      ASSERT_EQ(state(cache), after) << what << ": asked again after allocation " << n;
    }
  }
};

TEST_P(FullHeap, EditsAreAllOrNothing) {
  const Ids more = ids_from(100, 40);
  const Tensor k = keys(more), v = values(more), q = queries(more);
  const auto append_to = [&](std::int32_t s) {
    return [&, s](PagedCache& cache) {
      const TensorView q_view = q.view();
      return cache.append(k.view(), v.view(), &q_view, &s, nullptr);
    };
  };
  expect_all_or_nothing("append to a shared sequence", append_to(1));
  expect_all_or_nothing("append to an empty sequence", append_to(2));
  expect_all_or_nothing("fork", [](PagedCache& cache) { return cache.fork(0, 3); });
  expect_all_or_nothing("truncate", [](PagedCache& cache) { return cache.truncate(0, 44); });
  expect_all_or_nothing("free_sequence", [](PagedCache& cache) { return cache.free_sequence(1); });
  expect_all_or_nothing("seal", [](PagedCache& cache) { return cache.seal(); });
  expect_all_or_nothing("grow", [](PagedCache& cache) { return cache.grow(20); });
  std::vector<std::byte> saved;
  ASSERT_TRUE(make().save(saved, 0).ok());
  expect_all_or_nothing("load", [&](PagedCache& cache) { return cache.load(saved, 3); });
  expect_all_or_nothing("save", [](PagedCache& cache) {
    std::vector<std::byte> blob;
    return cache.save(blob, 0);
  });
  const Recipe r = recipe(GetParam());
  if (keeps_wide_tokens(r) || r.centre == Centre::mean) return;
  std::vector<std::int64_t> slots(40);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = 5 * kPage + static_cast<std::int64_t>(i);
  expect_all_or_nothing("write_slots", [&](PagedCache& cache) { return cache.write_slots(k.view(), v.view(), slots); });
}

TEST_P(FullHeap, CallsWithoutACacheSayIt) {
  const PagedCache cache = make();
  AttentionProblem p;
  p.recipe = cache.config().recipe;
  p.batch = 4;
  p.max_kv = 64;
  p.q_heads = kQHeads;
  p.kv_heads = kKvHeads;
  p.head_dim = p.head_dim_v = kDim;
  p.page_size = kPage;
  p.threads = 1;
  const Plan made = plan(p, Device::cpu).value();
  const Tensor q = gaussian({4, 1, kQHeads, kDim}, 1);
  GuardedBytes out(q.data.size() * sizeof(float)), scratch(made.workspace_bytes);
  AttentionTensors t;
  t.q = q.view();
  t.out = contiguous(static_cast<void*>(out.data()), DType::f32, q.shape);
  t.cache = cache.view();
  const CacheConfig& config = cache.config();
  const std::vector<std::pair<const char*, std::function<Status()>>> calls{
      {"plan", [&] { return plan(p, Device::cpu).status(); }},
      {"attend",
       [&] {
         return attend(made, t, {scratch.data(), made.workspace_bytes});
       }},
      {"create", [&] { return PagedCache::create(config).status(); }},
  };
  for (const auto& [what, call] : calls) {
    for (std::int64_t n = 0;; ++n) {
      Status s;
      g_countdown = n;
      try {
        s = call();
      } catch (const std::bad_alloc&) {
        g_countdown = -1;
        FAIL() << what << ": allocation " << n << " left the library as an exception";
      }
      const bool reached = g_countdown < 0;
      g_countdown = -1;
      ASSERT_TRUE(s.ok() || s.code() == StatusCode::out_of_memory) << what << ": " << s.message();
      if (!reached) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, FullHeap,
                         ::testing::Values("mxfp4,centre=none", "mpfa",
                                           "k=nvfp4,v=nvfp4@keys,p=bf16,sink=3,recent=page", "mxattention"),
                         [](const auto& test) { return std::to_string(test.index); });

}  // namespace
}  // namespace mpfa::test
