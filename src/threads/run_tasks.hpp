// The one place where the library starts work on several threads.
#pragma once

#include <cstdint>

#include "mpfa/executor.hpp"
#include "threads/thread_pool.hpp"

namespace mpfa::threads {

/// Runs body(task, worker) for task in [0, tasks) with the executor (a null function: the library's pool).
template <class Body>
void run_tasks(const Executor& executor, std::int64_t tasks, int threads, const Body& body) {
  if (threads <= 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) body(i, 0);
    return;
  }
  const auto call = [](void* argument, std::int64_t task, int worker) {
    (*static_cast<const Body*>(argument))(task, worker);
  };
  void* argument = const_cast<Body*>(&body);
  if (executor.parallel_for != nullptr) {
    executor.parallel_for(executor.context, tasks, threads, call, argument);
  } else {
    ThreadPool::shared().parallel_for(tasks, threads, call, argument);
  }
}

/// `threads` when it is positive, otherwise as many as the process may use.
[[nodiscard]] inline int resolve_threads(int threads) {
  return threads > 0 ? threads : available_threads();
}

}  // namespace mpfa::threads
