// What a sequence owns beside its pages: means, the affine residual of V, and the tokens kept in bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/pool.hpp"
#include "cache/rope.hpp"
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

/// Tokens of one call for one sequence, where the caller has them: token t, head h at [row, t, h] of k and v.
struct NewTokens {
  TensorView k, v;  // [sequences, tokens, heads, head dim]; no v with shared_kv
  std::int64_t row = 0, n = 0;
  std::int64_t first = 0;      // index of token 0 in its sequence
  const Rope* rope = nullptr;  // null: keys come as they are

  [[nodiscard]] std::int64_t position(std::int64_t t) const {
    return rope->positions == nullptr ? first + t : rope->positions[row * k.shape[1] + t];
  }
  /// Of row i of the queries of the call.
  [[nodiscard]] std::int64_t q_position(std::int64_t i, std::int64_t q_rows) const {
    return rope->q_positions == nullptr ? position(i) : rope->q_positions[row * q_rows + i];
  }
};

/// ok when x is [n, s, heads, d] of a float dtype with data.
[[nodiscard]] Status check_tokens(const char* call, const char* name, const TensorView& x, std::int64_t n,
                                  std::int64_t s, std::int64_t heads, std::int64_t d);
/// Threads worth starting for the work on so many elements.
[[nodiscard]] int threads_for(const CacheConfig& config, std::int64_t elements);
/// The turn of token t.
[[nodiscard]] inline RopeRow rope_row(const NewTokens& tokens, std::int64_t t) {
  return tokens.rope == nullptr ? RopeRow() : RopeRow(*tokens.rope, tokens.position(t));
}
/// K (turned) and V of token t and one head as float32, zeros after them; x has room for formats::padded_row of the
/// head dim.
void load_key(const NewTokens& tokens, std::int64_t t, std::int64_t head, const RopeRow& turn, float* x);
void load_value(const NewTokens& tokens, std::int64_t t, std::int64_t head, float* x);

/// K' of token t and one head before the Hadamard rotation, which is what rank-one terms are taken from, and V' as it
/// is stored.
void centred_key(const CacheConfig& config, const SequenceState& means, const NewTokens& tokens, std::int64_t t,
                 std::int64_t head, const RopeRow& turn, float* x);
void stored_value(const CacheConfig& config, const SequenceState& means, const NewTokens& tokens, std::int64_t t,
                  std::int64_t head, float* x);
/// True when values come back with one mean per channel: V is centred, or K is and V is part of it.
[[nodiscard]] bool has_v_mean(const CacheConfig& config);
/// The calibrated means of a configuration.
[[nodiscard]] SequenceState fixed_means(const CacheConfig& config);
/// Adds what a sequence takes from its first append: means, and alpha and beta of V ~ alpha * Vhat + beta.
void measure(const CacheConfig& config, const NewTokens& tokens, const TensorView* q, SequenceState& state);

}  // namespace mpfa
