// The checks of a call, shared between attend(), the reference and its calls over plain tensors.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "mpfa/attention.hpp"

namespace mpfa {

template <class... Args>
[[nodiscard]] Status invalid(fmt::format_string<Args...> text, Args&&... args) {
  return {StatusCode::invalid_argument, "attend: " + fmt::format(text, std::forward<Args>(args)...)};
}

template <class... Args>
[[nodiscard]] Status out_of_range(fmt::format_string<Args...> text, Args&&... args) {
  return {StatusCode::out_of_range, "attend: " + fmt::format(text, std::forward<Args>(args)...)};
}

/// The cache of a call: formats, geometry, lengths, page ids, and a bf16 copy for every key that is read as one.
/// Needs query rows that were checked before.
[[nodiscard]] Status check_cache(const AttentionProblem& problem, const AttentionTensors& tensors);

/// cu [batch + 1]: starts at 0, does not decrease, ends at total_q, no sequence longer than max_q.
[[nodiscard]] Status check_cu_seqlens(const AttentionProblem& problem, const std::int64_t* cu, std::int64_t total_q);

/// sinks, alibi_slopes and mask: there exactly when the problem asks for them; the mask covers rows x keys.
[[nodiscard]] Status check_extras(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t rows,
                                  std::int64_t keys);

/// q and out of a call: dtypes, shapes, strides, capacity. Reads no element.
[[nodiscard]] Status check_query(const AttentionProblem& problem, const AttentionTensors& tensors);
[[nodiscard]] Status check_output(const AttentionProblem& problem, const AttentionTensors& tensors);

/// What the host can check when the pointers are device memory: everything but lengths, page ids and the sequences.
[[nodiscard]] Status check_device_tensors(const AttentionProblem& problem, const AttentionTensors& tensors);

/// The cache's geometry and formats against the problem; `any_packed`: some token is in the pages.
[[nodiscard]] Status check_cache_shape(const AttentionProblem& problem, const CacheView& cache);
[[nodiscard]] Status check_cache_pages(const AttentionProblem& problem, const CacheView& cache, bool any_packed);

/// check_tensors without the output.
[[nodiscard]] Status check_inputs(const AttentionProblem& problem, const AttentionTensors& tensors);

}  // namespace mpfa
