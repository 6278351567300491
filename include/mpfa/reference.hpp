// The oracle: the same call in float64 or float32, one row at a time, written to be read. Every kernel is held to it.
#pragma once

#include <cstdint>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa::reference {

enum class Precision : std::uint8_t { f32, f64 };

/// attend() of the same problem over the same cache bytes. q is quantised as the recipe says, P is rounded per
/// key tile in the recipe's key order; sums run in `precision`. Writes f64 results:
/// out [rows, q_heads, head_dim_v] with rows = batch * sq or total_q, lse [rows, q_heads].
[[nodiscard]] Status attend(const AttentionProblem& problem, const AttentionTensors& tensors, Precision precision,
                            std::vector<double>& out, std::vector<double>& lse);

/// Exact float64 attention over the original tensors (no recipe): q [b, sq, hq, d], k/v [b, sk, hkv, d|dv], all masks
/// of the problem. Recipe error is measured against this.
[[nodiscard]] Status exact(const AttentionProblem& problem, const TensorView& q, const TensorView& k,
                           const TensorView& v, const AttentionTensors& extras, std::vector<double>& out,
                           std::vector<double>& lse);

struct Gradients {
  std::vector<double> dq, dk, dv, dsinks;  // shapes of q, k, v, [q_heads]
};
/// Backward of the recipe (straight-through quantisers) for full-sequence attention over the original tensors:
/// P is recomputed from the same quantised Q and K as the forward, with the true LSE.
[[nodiscard]] Status backward(const AttentionProblem& problem, const TensorView& q, const TensorView& k,
                              const TensorView& v, const TensorView& d_out, const AttentionTensors& extras,
                              Precision precision, Gradients& gradients);

}  // namespace mpfa::reference
