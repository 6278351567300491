// Rotary position embedding (RoPE, arXiv 2104.09864) as part of an append: keys are rotated before they are centred and
// quantised, queries into a buffer of the caller.
#pragma once

#include <cstdint>

#include "mpfa/tensor.hpp"

namespace mpfa {

/// Which of the 2 * half channels that turn belong together.
enum class RopeStyle : std::uint8_t {
  half,         // (i, i + half): GPT-NeoX, Llama
  interleaved,  // (2i, 2i + 1): GPT-J
};

/// Row p of cos and sin turns a pair (x, y) to (x cos - y sin, x sin + y cos), in float32 without FMA.
struct Rope {
  RopeStyle style = RopeStyle::half;
  std::int64_t begin = 0;  // first channel that turns; begin + 2 * half <= head_dim, all others stay
  TensorView cos, sin;     // [positions, half], the other dimensions 1; f32, bf16 or f16
  /// Position of every token of the call: [n, s] of an append, [n] of write_slots, which needs it. Null: the index of
  /// the token in its sequence.
  const std::int64_t* positions = nullptr;
  /// Queries to rotate in the same call, [n, sq, q_heads, head_dim]; q.data null: none.
  TensorView q;
  MutableTensorView q_out;  // shape of q; f32, bf16 or f16; may be the memory of q
  /// [n, sq]. Null: row i is at the position of token i of the call, and sq is s.
  const std::int64_t* q_positions = nullptr;
};

}  // namespace mpfa
