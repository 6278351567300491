// What a sequence owns beside its pages: means, the affine residual of V, and the tokens kept in bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/pool.hpp"
#include "mpfa/cache.hpp"

namespace mpfa {

/// Frozen at the first append.
struct SequenceState {
  std::vector<float> k_mean, q_mean, v_mean, v_alpha, v_beta;
};

struct Sequence {
  std::int64_t length = 0;
  std::int64_t packed_end = 0;  // tokens [0, packed_end) are in the pages
  std::int64_t wide_begin = 0;  // tokens [wide_begin, length) are in wide_k / wide_v
  std::vector<std::int32_t> pages;
  SequenceState state;
  std::vector<std::uint16_t> sink_k, sink_v, wide_k, wide_v;

  [[nodiscard]] SequenceView view(std::int64_t sink) const;
  [[nodiscard]] std::int64_t wide_bytes() const;
};

/// Float32 rows of one append to one sequence, head-major: k [kv_heads, n, head_dim], v [kv_heads, n, head_dim_v] or
/// empty with shared_kv.
struct NewTokens {
  std::int64_t n = 0;
  std::vector<float> k, v;
  std::vector<float> rank_one;  // [kv_heads, n, group]
};

/// ok when x is [n, s, heads, d] of a float dtype with data.
[[nodiscard]] Status check_tokens(const char* call, const char* name, const TensorView& x, std::int64_t n,
                                  std::int64_t s, std::int64_t heads, std::int64_t d);
/// Loads tokens [0, n) of sequence row `row` of k and of v, if there is one.
[[nodiscard]] NewTokens load_tokens(const TensorView& k, const TensorView* v, std::int64_t row, std::int64_t n);
/// The means of a sequence that has none yet: calibrated ones, or those of this append.
void set_means(const CacheConfig& config, const NewTokens& tokens, const TensorView* q, std::int64_t row,
               SequenceState& state);
/// Centres, takes the rank-one terms, rotates: tokens become K' and V' as they are stored.
void transform_tokens(const CacheConfig& config, const SequenceState& state, NewTokens& tokens);
/// True when values come back with one mean per channel: V is centred, or K is and V is part of it.
[[nodiscard]] bool has_v_mean(const CacheConfig& config);
/// alpha and beta of V ~ alpha * Vhat + beta, least squares over these (transformed) tokens.
void fit_v_residual(const CacheConfig& config, const NewTokens& tokens, SequenceState& state);

}  // namespace mpfa
