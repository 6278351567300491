// What the recipe makes of the query rows of one (sequence, head) before they meet keys.
#pragma once

#include <cstdint>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa {

/// Query rows that share a mean under q_centre=block (arXiv 2505.11594).
inline constexpr std::int64_t kQueryBlock = 128;

struct QueryHead {
  std::int64_t rows = 0;
  std::vector<float> wide;        // [rows, d]  rotate(q): what bf16 keys are multiplied with
  std::vector<float> quantised;   // [rows, d]  round trip of rotate(q - a) in q's format, all q_terms added up
  std::vector<float> block_mean;  // [ceil(rows / kQueryBlock), d]  rotate(a) of q_centre=block; empty otherwise
  std::vector<double> shift;      // [rows]  scale * (q . b), b = the sequence's K mean; 0 without centring
};

[[nodiscard]] QueryHead prepare_query(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t b,
                                      std::int64_t h);

/// The same for rows [rows, d] already in float32: q_mean is a [d] or null (zero), k_mean is b [d] or null.
[[nodiscard]] QueryHead prepare_query_rows(const AttentionProblem& problem, std::vector<float> q, const float* q_mean,
                                           const float* k_mean);

}  // namespace mpfa
