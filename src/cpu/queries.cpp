#include "cpu/queries.hpp"

#include <algorithm>

#include "attention/query.hpp"
#include "attention/sequences.hpp"
#include "cache/convert.hpp"
#include "cache/hadamard.hpp"
#include "cpu/query_ops.hpp"
#include "formats/dispatch.hpp"

namespace mpfa::cpu {

namespace {

/// Vectors that centre the rows of query head h, null where there are none.
struct Means {
  const float *q = nullptr, *k = nullptr;
};

Means means_of(const AttentionProblem& p, const AttentionTensors& t, std::int64_t b, std::int64_t g, std::int64_t h) {
  if (t.cache.sequences == nullptr) return {};
  const SequenceView& s = t.cache.sequences[b];
  const bool centred = p.recipe.q_centre != QCentre::none;
  return {!centred || s.q_mean == nullptr ? nullptr : s.q_mean + h * p.head_dim,
          s.k_mean == nullptr ? nullptr : s.k_mean + g * p.head_dim};
}

/// The round trip in vectors; false, with nothing done, when there is none for the format or the row.
bool quantise_row_fast(const BlockFormat& q, std::int64_t d, float* x) {
  constexpr BlockFormat kNvfp4{Element::e2m1, ScaleType::e4m3, ScaleRule::amax, PackAxis::head_dim, 16, 1};
  constexpr BlockFormat kFp8{Element::e4m3, ScaleType::f32, ScaleRule::amax, PackAxis::head_dim, 0, 1};
  constexpr BlockFormat kInt8{Element::int8, ScaleType::f32, ScaleRule::amax, PackAxis::head_dim, 0, 1};
  if (q.element == Element::bf16) row_to_bf16(x, d);
  if (q == kNvfp4) return row_to_nvfp4(x, d);
  if (q == kFp8) return row_to_fp8_e4m3(x, d);
  if (q == kInt8) return row_to_int8(x, d);
  return q.element == Element::bf16 || q.element == Element::f32;
}

/// x -> its round trip through the format of Q, and for two terms + that of what is left.
void quantise_row(const Recipe& r, std::int64_t d, float* x) {
  if (r.q_terms == 1 && quantise_row_fast(r.q, d, x)) return;
  float first[formats::kMaxHeadDim], second[formats::kMaxHeadDim];
  round_trip_tokens(r.q, d, 1, x, d, first, d, nullptr);
  if (r.q_terms == 2) {
    for (std::int64_t i = 0; i < d; ++i) x[i] -= first[i];
    round_trip_tokens(r.q, d, 1, x, d, second, d, nullptr);
    for (std::int64_t i = 0; i < d; ++i) first[i] += second[i];
  }
  std::copy_n(first, d, x);
}

/// Asks for a row of Q: rows of a KV head are apart in memory, and no prefetcher of the machine follows them.
void ask_for(const TensorView& q, std::int64_t offset, std::int64_t d) {
  if (q.stride[3] != 1) return;
  constexpr std::int64_t kLine = 64;
  const auto size = static_cast<std::int64_t>(dtype_bytes(q.dtype));
  const auto* row = static_cast<const std::byte*>(q.data) + offset * size;
  for (std::int64_t i = 0; i < d * size; i += kLine) __builtin_prefetch(row + i);
}

}  // namespace

bool prepares_rows(const AttentionProblem& problem) {
  const Recipe& r = problem.recipe;
  return r.q_centre != QCentre::block && r.q.axis == PackAxis::head_dim && r.q.block_keys == 1;
}

void prepare_rows(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t b, std::int64_t g,
                  std::int64_t row0, std::int64_t count, const QueryBlock& block) {
  const std::int64_t d = problem.head_dim;
  const std::int64_t group = problem.q_heads / problem.kv_heads;
  constexpr std::int64_t kAhead = 8;
  const auto head = [&](std::int64_t r) { return g * group + (row0 + r) % group; };
  const auto offset = [&](std::int64_t r) { return row_offset(tensors.q, tensors, b, (row0 + r) / group, head(r)); };
  for (std::int64_t r = 0; r < count; ++r) {
    if (r + kAhead < count) ask_for(tensors.q, offset(r + kAhead), d);
    const std::int64_t h = head(r);
    const Means mean = means_of(problem, tensors, b, g, h);
    float* x = block.packed + r * d;
    load_row(tensors.q.data, tensors.q.dtype, offset(r), tensors.q.stride[3], d, x);
    const double dot = mean.k == nullptr ? 0.0 : row_dot(x, mean.k, d);
    block.shift[r] = static_cast<float>(static_cast<double>(softmax_scale(problem)) * dot);
    const bool rotate = problem.recipe.rotate != Rotate::none;
    if (block.wide != nullptr) {
      float* wide = block.wide + r * d;
      std::copy_n(x, d, wide);
      if (rotate) hadamard_rows(wide, 1, d, d);
    }
    for (std::int64_t i = 0; mean.q != nullptr && i < d; ++i) x[i] -= mean.q[i];
    if (rotate) hadamard_rows(x, 1, d, d);
    quantise_row(problem.recipe, d, x);
  }
}

std::int64_t query_floats(const AttentionProblem& problem, std::int64_t rows) {
  if (prepares_rows(problem)) return 0;
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
