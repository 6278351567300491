#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "threads/run_tasks.hpp"

namespace mpfa::threads {
namespace {

/// An executor over `pool`, as an engine would write one.
Executor over(ThreadPool& pool) {
  return {[](void* context, std::int64_t tasks, int threads, ThreadPool::Body body, void* argument) {
            static_cast<ThreadPool*>(context)->parallel_for(tasks, threads, body, argument);
          },
          &pool};
}

TEST(ThreadPool, EveryTaskRunsOnceForAnyThreadCount) {
  ThreadPool pool;
  for (const int threads : {1, 4, 2, 7, 3}) {
    std::vector<std::atomic<int>> hits(1000);
    run_tasks(over(pool), 1000, threads, [&](std::int64_t i, int worker) {
      ASSERT_LT(worker, threads);
      hits[i].fetch_add(1);
    });
    for (const auto& h : hits) ASSERT_EQ(h.load(), 1);
  }
}

TEST(ThreadPool, LateWorkersTakeNoPartInARoundThatIsOver) {
  ThreadPool pool;
  for (std::int64_t round = 0; round < 20000; ++round) {
    // Few short tasks: the caller is often done before a worker wakes up. `hits` is gone by then.
    const std::int64_t tasks = 2 + round % 3;
    std::vector<std::atomic<int>> hits(static_cast<std::size_t>(tasks));
    run_tasks(over(pool), tasks, 2 + static_cast<int>(round % 4),
              [&](std::int64_t i, int) { hits.at(i).fetch_add(1); });
    for (const auto& h : hits) ASSERT_EQ(h.load(), 1) << round;
  }
}

TEST(ThreadPool, ConcurrentCallersDoNotWaitForEachOther) {
  ThreadPool pool;
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        run_tasks(over(pool), 20, 3, [&](std::int64_t i, int) { sum.fetch_add(i); });
      }
    });
  }
  for (auto& t : callers) t.join();
  EXPECT_EQ(sum.load(), 4 * 50 * 190);
}

TEST(ThreadPool, IdleWorkersUseNoProcessorTime) {
  ThreadPool pool;
  run_tasks(over(pool), 100, 4, [](std::int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();  // of all threads of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.02);
}

TEST(RunTasks, TheCallersExecutorRunsTheTasks) {
  std::int64_t calls = 0;
  const Executor backwards{[](void* context, std::int64_t tasks, int, ThreadPool::Body body, void* argument) {
                             ++*static_cast<std::int64_t*>(context);
                             for (std::int64_t i = tasks; i-- > 0;) body(argument, i, 0);
                           },
                           &calls};
  std::vector<std::int64_t> order;
  run_tasks(backwards, 3, 2, [&](std::int64_t i, int) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{2, 1, 0}));
  EXPECT_EQ(calls, 1);
}

TEST(ThreadPool, NoTasksIsNoCall) {
  ThreadPool pool;
  run_tasks(over(pool), 0, 4, [](std::int64_t, int) { FAIL(); });
}

}  // namespace
}  // namespace mpfa::threads
