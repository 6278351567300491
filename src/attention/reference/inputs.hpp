// Plain tensors of the calls that need no cache, as float64, and the logits and softmax of one row over them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa::reference {

/// q [rows, q_heads, d], k [batch, sk, kv_heads, d], v [batch, sk, kv_heads, d_v], contiguous.
struct Inputs {
  std::vector<double> q, k, v;
  std::int64_t sk = 0;                // tokens of k and v per sequence
  std::vector<std::int64_t> lengths;  // [batch] keys in use, sk unless the caller gave lengths
};

/// Values of x in row-major order.
[[nodiscard]] std::vector<double> to_double(const TensorView& x);

/// x has this shape, a float dtype (f32, f64, bf16, f16) and data.
[[nodiscard]] Status check_float_tensor(const char* name, const TensorView& x,
                                        const std::array<std::int64_t, 4>& shape);

/// Checks t.q, k, v (f32, f64, bf16, f16) and the extras in t against the problem and loads them. Ragged q by
/// t.cu_seqlens_q; shorter sequences by t.cache.lengths.
[[nodiscard]] Status load_inputs(const AttentionProblem& problem, const AttentionTensors& t, const TensorView& k,
                                 const TensorView& v, Inputs& inputs);

/// The problem with nothing of its recipe: what check_problem and finish_logit need for unquantised attention.
[[nodiscard]] AttentionProblem without_recipe(AttentionProblem problem);

/// softmax of true logits (-inf = masked) with an optional sink: p sums to 1 - p_sink. Empty rows have p = 0.
template <class Real>
struct Softmax {
  std::vector<Real> p;
  Real lse;
  Real p_sink = 0;
  bool empty = true;  // no key; a sink alone does not count
};
template <class Real>
[[nodiscard]] Softmax<Real> softmax(const std::vector<Real>& logits, const float* sink);

extern template Softmax<float> softmax(const std::vector<float>&, const float*);
extern template Softmax<double> softmax(const std::vector<double>&, const float*);

}  // namespace mpfa::reference
