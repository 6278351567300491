// Where the threads of a call come from: the library's pool, or one that the caller owns.
#pragma once

#include <cstdint>

namespace mpfa {

/// A way to run the tasks of a call. Plain function pointers, so that a C program or an engine can pass its own pool.
struct Executor {
  /// Calls body(argument, task, worker) once for every task in [0, tasks) and returns when all are done. worker is in
  /// [0, threads) and no two calls at the same time have the same one. Tasks may run in any order and on fewer
  /// threads; results do not depend on it. body does not throw and does not wait for other tasks.
  /// Null: the pool of the library.
  void (*parallel_for)(void* context, std::int64_t tasks, int threads,
                       void (*body)(void* argument, std::int64_t task, int worker), void* argument) = nullptr;
  void* context = nullptr;
};

}  // namespace mpfa
