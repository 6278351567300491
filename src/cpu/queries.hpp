// Query rows as the tiles multiply them: centred, rotated and rounded, grouped by KV head. A task prepares its own
// rows; only recipes whose rows depend on each other (q_centre=block, Q formats with blocks along the rows) prepare
// whole heads before.
#pragma once

#include <cstdint>

#include "mpfa/attention.hpp"

namespace mpfa::cpu {

/// Rows of (sequence, KV head) are contiguous, row r = i * group + member; row() says where they start.
struct Queries {
  float* packed = nullptr;  // rounded as the recipe says; multiplies keys from the pages
  float* wide = nullptr;    // float32 q, rotated, not centred; multiplies bf16 keys; null when there are none
  float* shift = nullptr;   // scale * (q . k_mean), natural-log units: what centring K took from every logit of the row
  std::int64_t kv_heads = 0, group = 0, head_dim = 0;

  /// Index of row 0 of (sequence with `first` rows before it and `count` rows, KV head g).
  [[nodiscard]] std::int64_t row(std::int64_t first, std::int64_t count, std::int64_t g) const {
    return (first * kv_heads + g * count) * group;
  }
};

/// True when a task prepares its rows with prepare_rows(), false when the call starts with prepare_queries().
[[nodiscard]] bool prepares_rows(const AttentionProblem& problem);

/// Rows of one task: packed and wide (null when there are none) are [count, head_dim], shift is [count], as in Queries.
struct QueryBlock {
  float *packed = nullptr, *wide = nullptr, *shift = nullptr;
};
/// Fills rows [row0, row0 + count) of (sequence b, KV head g).
void prepare_rows(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t b, std::int64_t g,
                  std::int64_t row0, std::int64_t count, const QueryBlock& block);

/// Floats that prepare_queries needs for `rows` query rows (all heads), and lays out in `memory`.
[[nodiscard]] std::int64_t query_floats(const AttentionProblem& problem, std::int64_t rows);
[[nodiscard]] Queries lay_out_queries(const AttentionProblem& problem, std::int64_t rows, float* memory);

/// Fills the rows of (sequence b, KV head g).
void prepare_queries(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t b, std::int64_t g,
                     const Queries& queries);

}  // namespace mpfa::cpu
