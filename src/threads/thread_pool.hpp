// A small thread pool: parallel_for over tasks, results independent of how tasks land on threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace mpfa::threads {

/// Threads of this machine that the process may use.
[[nodiscard]] int available_threads();

class ThreadPool {
 public:
  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  using Body = void (*)(void* argument, std::int64_t task, int worker);
  /// Runs body(argument, task, worker) for task in [0, tasks) on up to `threads` threads, worker in [0, threads), and
  /// returns when all are done. A call from a second thread while the pool is busy, or in a forked child, runs on its
  /// own thread.
  void parallel_for(std::int64_t tasks, int threads, Body body, void* argument);

  /// The pool of the process, started at first use.
  static ThreadPool& shared();

 private:
  void work(int worker);
  /// Threads that there are then, the caller included: at most `threads`.
  [[nodiscard]] int start(int threads);
  void run_tasks_of_round(int worker);
  /// Takes part in the round of `ticket`, unless it is over or has workers enough. Returns whether it did.
  bool join(std::uint64_t ticket, int worker);

  std::mutex owner_;  // held by the one call that uses the workers
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  std::atomic<std::int64_t> next_{0};
  std::int64_t tasks_ = 0;
  // The round, its number of threads, whether workers may still join it, and how many did, in one word: a worker that
  // is late neither takes part in a round that is over nor keeps its caller waiting.
  static constexpr std::uint64_t kJoined = (1U << 15) - 1, kOpen = 1U << 15, kThreads = 1U << 16, kRound = 1ULL << 32;
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::uint64_t> finished_{0};  // workers that joined this round and are done
  bool stop_ = false;
  int pid_ = 0;
};

}  // namespace mpfa::threads
