#include "cpu/queries.hpp"

#include <algorithm>

#include "attention/query.hpp"
#include "attention/sequences.hpp"

namespace mpfa::cpu {

std::int64_t query_floats(const AttentionProblem& problem, std::int64_t rows) {
  const std::int64_t copies = keeps_wide_tokens(problem.recipe) ? 2 : 1;
  return rows * problem.q_heads * (copies * problem.head_dim + 1);
}

Queries lay_out_queries(const AttentionProblem& problem, std::int64_t rows, float* memory) {
  const std::int64_t all = rows * problem.q_heads * problem.head_dim;
  Queries q;
  q.packed = memory;
  q.wide = keeps_wide_tokens(problem.recipe) ? memory + all : nullptr;
  q.shift = memory + all * (q.wide == nullptr ? 1 : 2);
  q.kv_heads = problem.kv_heads;
  q.group = problem.q_heads / problem.kv_heads;
  q.head_dim = problem.head_dim;
  return q;
}

void prepare_queries(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t b, std::int64_t g,
                     const Queries& queries) {
  const auto [n, first] = query_rows(tensors, b);
  const std::int64_t d = problem.head_dim;
  const std::int64_t base = queries.row(first, n, g);
  for (std::int64_t m = 0; m < queries.group; ++m) {
    const QueryHead head = prepare_query(problem, tensors, b, g * queries.group + m);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t r = base + i * queries.group + m;
      queries.shift[r] = static_cast<float>(head.shift[i]);
      float* packed = queries.packed + r * d;
      std::copy_n(head.quantised.data() + i * d, d, packed);
      if (!head.block_mean.empty()) {
        // The block mean meets the same K codes as the row, so the two products are one.
        const float* mean = head.block_mean.data() + i / kQueryBlock * d;
        for (std::int64_t c = 0; c < d; ++c) packed[c] += mean[c];
      }
      if (queries.wide != nullptr) std::copy_n(head.wide.data() + i * d, d, queries.wide + r * d);
    }
  }
}

}  // namespace mpfa::cpu
