#include "threads/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace mpfa::threads {

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

void ThreadPool::start(int threads) {
  pid_ = static_cast<int>(getpid());
  while (static_cast<int>(threads_.size()) < threads - 1) {
    const int worker = static_cast<int>(threads_.size()) + 1;
    threads_.emplace_back([this, worker] { work(worker); });
  }
}

void ThreadPool::work(int worker) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || (round_ != seen && worker < active_); });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    for (std::int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1)) body_(argument_, i, worker);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

void ThreadPool::parallel_for(std::int64_t tasks, int threads, Body body, void* argument) {
  threads = static_cast<int>(std::min<std::int64_t>(std::max(threads, 1), tasks));
  const std::unique_lock owner(owner_, std::try_to_lock);
  const bool forked = owner.owns_lock() && !threads_.empty() && pid_ != static_cast<int>(getpid());
  if (threads <= 1 || !owner.owns_lock() || forked) {
    for (std::int64_t i = 0; i < tasks; ++i) body(argument, i, 0);
    return;
  }
  start(threads);
  {
    const std::lock_guard lock(mutex_);
    body_ = body;
    argument_ = argument;
    tasks_ = tasks;
    next_.store(0);
    active_ = threads;
    running_ = threads - 1;
    ++round_;
  }
  wake_.notify_all();
  for (std::int64_t i = next_.fetch_add(1); i < tasks; i = next_.fetch_add(1)) body(argument, i, 0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
}

}  // namespace mpfa::threads
