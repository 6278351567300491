// What the handles hold, and how statuses, structs and exceptions cross the C border.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpfa/attention.hpp"
#include "mpfa/cache.hpp"
#include "mpfa/mpfa.h"
#include "mpfa/rope.hpp"

struct mpfa_recipe {
  mpfa::Recipe recipe;
  std::string text;
};

struct mpfa_cache {
  explicit mpfa_cache(mpfa::PagedCache c) : cache(std::move(c)) {}
  mpfa::PagedCache cache;
  // What the pointers of the last mpfa_cache_get_view point at:
  std::string k_format, v_format;
  std::vector<mpfa_sequence_view> sequences;
};

struct mpfa_blob {
  std::vector<std::byte> bytes;
};

struct mpfa_plan {
  mpfa::Plan plan;
};

namespace mpfa::capi {

/// Writes code and text of `status` to `error` (null or too small a struct: dropped) and gives the code back.
mpfa_status report(const Status& status, mpfa_error* error);

/// Runs `body` (returns Status); exceptions become statuses.
template <class Body>
mpfa_status guarded(mpfa_error* error, Body body) {
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    return report({StatusCode::out_of_memory, "the heap is full; use a smaller problem or free memory"}, error);
  } catch (const std::exception& e) {
    return report({StatusCode::internal, fmt::format("unexpected exception: {}", e.what())}, error);
  }
}

[[nodiscard]] inline Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

[[nodiscard]] inline Status not_null(const char* call, const char* name, const void* pointer) {
  if (pointer != nullptr) return {};
  return invalid(fmt::format("{}: {} is NULL; a valid pointer is needed", call, name));
}

/// ok when `data` and `count` describe an array; one of no elements may be null.
[[nodiscard]] inline Status check_list(const char* call, const char* name, const void* data, std::int64_t count) {
  if (count < 0) return invalid(fmt::format("{}: count is {}; 0 or more is needed", call, count));
  return count == 0 ? Status() : not_null(call, name, data);
}

/// ok when `s` is a struct of this header or of a newer one whose unknown tail is zero.
template <class T>
[[nodiscard]] Status check_struct(const char* call, const char* name, const T* s) {
  constexpr std::size_t kLargestTail = 4096;
  MPFA_RETURN_IF_ERROR(not_null(call, name, s));
  const std::size_t size = s->struct_size;
  if (size < sizeof(T) || size > sizeof(T) + kLargestTail) {
    return invalid(
        fmt::format("{}: {}->struct_size is {}, this library needs {} (call the *_init function or set "
                    "sizeof of the struct)",
                    call, name, size, sizeof(T)));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(s);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return invalid(
          fmt::format("{}: {} uses fields that this library (ABI {}) does not know; update the library or "
                      "leave them zero",
                      call, name, MPFA_ABI_VERSION));
    }
  }
  return {};
}

/// Copies defaults into a caller's struct of `struct_size` bytes; its unknown tail becomes zero.
template <class T>
void init_struct(T* s, std::size_t struct_size, T defaults) {
  if (s == nullptr || struct_size < sizeof(std::size_t)) return;
  defaults.struct_size = struct_size;
  std::memset(static_cast<void*>(s), 0, struct_size);
  std::memcpy(static_cast<void*>(s), &defaults, struct_size < sizeof(T) ? struct_size : sizeof(T));
}

[[nodiscard]] mpfa_operand_pages from_pages(const OperandPages& p);
[[nodiscard]] Result<CacheConfig> to_config(const char* call, const mpfa_cache_config* c);
[[nodiscard]] Result<Device> to_device(const char* call, mpfa_device device);
/// NULL is the library's pool.
[[nodiscard]] Result<Executor> to_executor(const char* call, const mpfa_executor* e);
[[nodiscard]] Status check_dtype(const char* call, const char* name, mpfa_dtype dtype);
/// Checks the dtype; shapes and strides are checked by the call that reads the view.
[[nodiscard]] Result<TensorView> to_view(const char* call, const char* name, const mpfa_tensor& t);
/// Tokens of a call: k, and v where there is one (NULL with shared_kv).
[[nodiscard]] Result<std::pair<TensorView, std::optional<TensorView>>> to_views(const char* call, const mpfa_tensor* k,
                                                                                const mpfa_tensor* v);
[[nodiscard]] Result<Rope> to_rope(const char* call, const mpfa_rope* r);
[[nodiscard]] Result<AttentionProblem> to_problem(const char* call, const mpfa_problem* p);
/// The sequences of the view are left to the caller when batch is 0.
[[nodiscard]] Result<CacheView> to_cache_view(const char* call, const mpfa_cache_view& v, std::int64_t batch,
                                              std::vector<SequenceView>& sequences);
/// An array in device memory, which the host cannot convert: both structs have one layout.
[[nodiscard]] const SequenceView* device_sequences(const mpfa_sequence_view* sequences);

}  // namespace mpfa::capi
