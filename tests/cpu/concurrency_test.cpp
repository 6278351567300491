// Calls at the same time: one cache read by many, a cache for each thread, executors of the caller, forked processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/mixed_batch.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kMaxKv = 8300;
const char* const kRecipe = "mpfa_static";

/// A pool of the worst kind: new threads for every call, tasks from last to first.
struct RandomThreads {
  std::atomic<int> calls{0};
  static void parallel_for(void* context, std::int64_t tasks, int threads, void (*body)(void*, std::int64_t, int),
                           void* argument) {
    ++static_cast<RandomThreads*>(context)->calls;
    std::atomic<std::int64_t> left{tasks};
    std::vector<std::thread> workers;
    for (int w = 0; w < threads; ++w) {
      workers.emplace_back([&, w] {
        for (std::int64_t i = --left; i >= 0; i = --left) body(argument, i, w);
      });
    }
    for (std::thread& t : workers) t.join();
  }
  Executor executor() { return {parallel_for, this}; }
};

TEST(Concurrency, ManyThreadsReadOneCache) {
  const MixedBatch batch(kRecipe, 10);
  std::vector<std::vector<std::int64_t>> ids{{0, 1, 2}, {3, 4}, {5, 6, 7}, {9, 8, 0}};
  std::vector<Answer> want(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Selection some(batch.cache, ids[i], batch.rows);
    want[i] = some.run(some.problem(1, kMaxKv));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    callers.emplace_back([&, i] {
      const Selection some(batch.cache, ids[i], batch.rows);
      for (int round = 0; round < 5; ++round) {
        if (some.run(some.problem(2, kMaxKv)) != want[i]) ++wrong;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Concurrency, EveryThreadHasACacheOfItsOwn) {
  const MixedBatch one(kRecipe, 10);
  const std::vector<std::int64_t> ids{0, 3, 4, 9};
  const Selection some(one.cache, ids, one.rows);
  const Answer want = some.run(some.problem(1, kMaxKv));
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      MixedBatch mine(kRecipe, 10);
      const Selection mine_some(mine.cache, ids, mine.rows);
      if (mine_some.run(mine_some.problem(2, kMaxKv)) != want) ++wrong;
      std::vector<std::byte> blob;
      if (!mine.cache.save(blob, 3).ok() || !mine.cache.free_sequence(3).ok() || !mine.cache.load(blob, 3).ok() ||
          !mine.cache.free_sequence(8).ok() || !mine.cache.fork(3, 8).ok() || !mine.cache.truncate(8, 50).ok()) {
        ++wrong;
      }
      const Selection again(mine.cache, ids, mine.rows);
      if (again.run(again.problem(2, kMaxKv)) != want) ++wrong;
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Concurrency, AnExecutorOfTheCallerGivesTheSameBits) {
  const MixedBatch batch(kRecipe, 10);
  const Selection some(batch.cache, {0, 1, 3, 4, 6}, batch.rows);
  const Answer want = some.run(some.problem(1, kMaxKv));
  RandomThreads pool;
  EXPECT_EQ(some.run(some.problem(4, kMaxKv), pool.executor()), want);
  EXPECT_GT(pool.calls, 0);
  // One executor, two calls at a time.
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 2; ++c) {
    callers.emplace_back([&] {
      if (some.run(some.problem(3, kMaxKv), pool.executor()) != want) ++wrong;
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Concurrency, AppendOnAnExecutorWritesTheSameBytes) {
  for (const char* text : {"mpfa_static", "mxfp4", "k=nvfp4,v=nvfp4@keys,p=bf16,sink=4,recent=page"}) {
    std::vector<std::vector<std::byte>> blobs;
    RandomThreads pool;
    for (const int threads : {1, 4}) {
      CacheConfig c;
      c.recipe = recipe(text);
      c.batch = 3;
      c.num_pages = 30;
      c.q_heads = 4;
      c.kv_heads = 2;
      c.head_dim = c.head_dim_v = 64;
      c.threads = threads;
      if (threads > 1) c.executor = pool.executor();
      if (c.recipe.centre == Centre::fixed) c.k_mean = gaussian({1, 1, 2, 64}, 21).data;
      if (c.recipe.q_centre == QCentre::fixed) c.q_mean = gaussian({1, 1, 4, 64}, 22).data;
      PagedCache cache = PagedCache::create(c).value();
      for (const std::int64_t n : {200, 1, 77}) {
        const Tensor k = gaussian({3, n, 2, 64}, 1), v = gaussian({3, n, 2, 64}, 2);
        ASSERT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
      }
      for (std::int64_t s = 0; s < 3; ++s) ASSERT_TRUE(cache.save(blobs.emplace_back(), s).ok());
    }
    for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(blobs[s], blobs[s + 3]) << text;
  }
}

TEST(Concurrency, AForkedProcessComputesTheSame) {
  const MixedBatch batch(kRecipe, 10);
  const Selection some(batch.cache, {0, 3, 4}, batch.rows);
  const Answer want = some.run(some.problem(2, kMaxKv));  // the pool has threads now, and the child will not
  const pid_t child = fork();
  if (child == 0) _exit(some.run(some.problem(2, kMaxKv)) == want ? 0 : 1);
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mpfa::test
