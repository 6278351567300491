#include "threads/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace mpfa::threads {

namespace {

/// Tells the core that this is a waiting loop.
void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool& ThreadPool::shared() {
  // Never destroyed: worker threads may outlive static destructors of the host program.
  static auto* pool = new ThreadPool;
  return *pool;
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

int ThreadPool::start(int threads) {
  pid_ = static_cast<int>(getpid());
  try {
    while (static_cast<int>(threads_.size()) < threads - 1) {
      const int worker = static_cast<int>(threads_.size()) + 1;
      threads_.emplace_back([this, worker] { work(worker); });
    }
  } catch (const std::exception&) {
    // The system gives no more threads: the call is slower and otherwise the same.
  }
  return std::min(threads, static_cast<int>(threads_.size()) + 1);
}

namespace {

/// Waits actively for as long as a call or the pause between two calls of a decode step takes: waking a sleeping thread
/// costs as much as a small call. False when `done` did not come true.
template <class Done>
bool spin_until(int threads, const Done& done) {
  static const int cores = available_threads();
  if (threads > cores) return done();
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
  while (!done()) {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() > end) return done();
  }
  return true;
}

}  // namespace

void ThreadPool::run_tasks_of_round(int worker) {
  for (std::int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1)) body_(argument_, i, worker);
}

bool ThreadPool::join(std::uint64_t ticket, int worker) {
  const std::uint64_t round = ticket / kRound;
  while (ticket / kRound == round && (ticket & kOpen) != 0 && worker < static_cast<int>(ticket % kRound / kThreads)) {
    if (ticket_.compare_exchange_weak(ticket, ticket + 1)) return true;
  }
  return false;
}

void ThreadPool::work(int worker) {
  std::uint64_t seen = 0;
  const auto called = [&] { return ticket_.load(std::memory_order_acquire) / kRound != seen; };
  while (true) {
    if (!spin_until(worker + 1, called)) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || called(); });
      if (stop_) return;
    }
    const std::uint64_t ticket = ticket_.load();
    seen = ticket / kRound;
    if (!join(ticket, worker)) continue;
    run_tasks_of_round(worker);
    finished_.fetch_add(1);
    if ((ticket_.load() & kOpen) != 0) continue;  // the caller has work of its own and looks when it is done
    const std::lock_guard lock(mutex_);
    done_.notify_one();
  }
}

void ThreadPool::parallel_for(std::int64_t tasks, int threads, Body body, void* argument) {
  threads = static_cast<int>(std::min<std::int64_t>({std::max(threads, 1), tasks, kJoined}));
  const std::unique_lock owner(owner_, std::try_to_lock);
  const bool forked = owner.owns_lock() && !threads_.empty() && pid_ != static_cast<int>(getpid());
  if (threads <= 1 || !owner.owns_lock() || forked) {
    for (std::int64_t i = 0; i < tasks; ++i) body(argument, i, 0);
    return;
  }
  threads = start(threads);
  body_ = body;
  argument_ = argument;
  tasks_ = tasks;
  next_.store(0);
  finished_.store(0);
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t round = ticket_.load() / kRound + 1;
    ticket_.store(round * kRound + static_cast<std::uint64_t>(threads) * kThreads + kOpen);
  }
  wake_.notify_all();
  run_tasks_of_round(0);
  const std::uint64_t joined = ticket_.fetch_and(~kOpen) & kJoined;
  const auto finished = [&] { return finished_.load() == joined; };
  if (spin_until(threads, finished)) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, finished);
}

}  // namespace mpfa::threads
