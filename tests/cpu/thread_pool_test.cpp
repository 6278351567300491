#include "cpu/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace mpfa::cpu {
namespace {

TEST(ThreadPool, EveryTaskRunsOnceForAnyThreadCount) {
  ThreadPool pool;
  for (const int threads : {1, 4, 2, 7, 3}) {
    std::vector<std::atomic<int>> hits(1000);
    pool.parallel_for(1000, threads, [&](std::int64_t i, int worker) {
      ASSERT_LT(worker, threads);
      hits[i].fetch_add(1);
    });
    for (const auto& h : hits) ASSERT_EQ(h.load(), 1);
  }
}

TEST(ThreadPool, ConcurrentCallersDoNotWaitForEachOther) {
  ThreadPool pool;
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        pool.parallel_for(20, 3, [&](std::int64_t i, int) { sum.fetch_add(i); });
      }
    });
  }
  for (auto& t : callers) t.join();
  EXPECT_EQ(sum.load(), 4 * 50 * 190);
}

TEST(ThreadPool, NoTasksIsNoCall) {
  ThreadPool pool;
  pool.parallel_for(0, 4, [](std::int64_t, int) { FAIL(); });
}

}  // namespace
}  // namespace mpfa::cpu
