// The one answer to an allocation that failed, for calls that allocate before they change anything.
#pragma once

#include <fmt/format.h>

#include "mpfa/status.hpp"

namespace mpfa {

[[nodiscard]] inline Status heap_full(const char* call) {
  return {StatusCode::out_of_memory,
          fmt::format("{}: the heap is full and nothing was changed; free memory or ask for less", call)};
}

}  // namespace mpfa
