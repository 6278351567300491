// Quantised operands of a full-sequence call over plain tensors: what forward and backward multiply.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/query.hpp"
#include "attention/reference/inputs.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::reference {

/// K and V of one (sequence, KV head) with n keys. Means are constants of the backward.
template <class Real>
struct KeyOperands {
  std::int64_t n = 0;
  std::vector<float> k_given;         // [n, d]  k - k_mean
  std::vector<float> k_codes;         // [n, d]  round trip of rotate(k - k_mean): what scores use
  std::vector<Real> k;                // [n, d]  k_codes with the rotation undone
  std::vector<float> v_given;         // [n, d_v]  v - v_mean
  std::vector<Real> v;                // [n, d_v]  its round trip, rotation undone
  std::vector<float> k_mean, v_mean;  // [d], [d_v]; zeros without centring
};

/// Q of one (sequence, query head).
template <class Real>
struct QueryOperands {
  QueryHead head;
  std::vector<float> q_given;   // [rows, d]  q - a
  std::vector<Real> q;          // [rows, d]  head.quantised with the rotation undone
  std::vector<Real> mean;       // [rows, d]  a of each row where its term is part of the score, else 0
  std::vector<float> rank_one;  // [n]  a . (k - k_mean), as the recipe stores it; empty without the term
};

/// What a backward needs beyond its inputs: a recipe it covers, calibrated means (in t.cache.sequences), dO like the
/// output.
[[nodiscard]] Status check_backward(const AttentionProblem& problem, const AttentionTensors& t,
                                    const TensorView& d_out);

template <class Real>
[[nodiscard]] KeyOperands<Real> key_operands(const AttentionProblem& problem, const AttentionTensors& t,
                                             const Inputs& inputs, std::int64_t b, std::int64_t g);
template <class Real>
[[nodiscard]] QueryOperands<Real> query_operands(const AttentionProblem& problem, const AttentionTensors& t,
                                                 const Inputs& inputs, const KeyOperands<Real>& keys, std::int64_t b,
                                                 std::int64_t h);

}  // namespace mpfa::reference
