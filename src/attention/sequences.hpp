// Where the query rows of one sequence lie in a call, and which keys they read packed.
#pragma once

#include <cmath>
#include <cstdint>

#include "cache/hadamard.hpp"
#include "mpfa/attention.hpp"

namespace mpfa {

/// The query rows of one sequence.
struct QueryRows {
  std::int64_t count = 0;
  std::int64_t first = 0;  // index of row 0 among all rows of the call
};

[[nodiscard]] inline QueryRows query_rows(const AttentionTensors& t, std::int64_t b) {
  if (t.cu_seqlens_q == nullptr) return {t.q.shape[1], b * t.q.shape[1]};
  return {t.cu_seqlens_q[b + 1] - t.cu_seqlens_q[b], t.cu_seqlens_q[b]};
}

/// Element offset of (row i of sequence b, head h) in q or out.
template <class View>
[[nodiscard]] std::int64_t row_offset(const View& x, const AttentionTensors& t, std::int64_t b, std::int64_t i,
                                      std::int64_t h) {
  const std::int64_t row =
      t.cu_seqlens_q == nullptr ? b * x.stride[0] + i * x.stride[1] : (t.cu_seqlens_q[b] + i) * x.stride[1];
  return row + h * x.stride[2];
}

/// Position of (row i of sequence b, head h) in lse: [batch, q_heads, sq] or ragged [q_heads, total_q].
[[nodiscard]] inline std::int64_t lse_offset(const AttentionTensors& t, std::int64_t b, std::int64_t i,
                                             std::int64_t h) {
  if (t.cu_seqlens_q == nullptr) return (b * t.q.shape[2] + h) * t.q.shape[1] + i;
  return h * t.q.shape[1] + t.cu_seqlens_q[b] + i;
}

[[nodiscard]] inline float softmax_scale(const AttentionProblem& p) {
  return p.softmax_scale > 0.0F ? p.softmax_scale : 1.0F / std::sqrt(static_cast<float>(p.head_dim));
}

[[nodiscard]] constexpr std::int64_t recent_tokens(const AttentionProblem& p) {
  return p.recipe.recent == Recipe::recent_page ? p.page_size : p.recipe.recent;
}

/// Channels that rotate=qkv mixed in V, for the inverse on the output: V that is part of K has K's blocks.
[[nodiscard]] inline std::int64_t v_rotation_block(const AttentionProblem& p, const CacheView& cache) {
  return hadamard_block(cache.shared_kv ? p.head_dim : p.head_dim_v);
}

/// A row that sees `keys` reads key j packed when begin <= j < end, and its bf16 copy otherwise.
[[nodiscard]] inline KeyRange packed_keys(const AttentionProblem& p, const AttentionTensors& t, std::int64_t b,
                                          KeyRange keys) {
  if (t.cache.sequences == nullptr) return {0, keys.end};
  const SequenceView& s = t.cache.sequences[b];
  return {s.sink, packed_limit(keys.end - 1, commit_unit(p.recipe, p.page_size), recent_tokens(p), s.packed_end)};
}

}  // namespace mpfa
