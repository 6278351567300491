// How each backward rule rounds the operands of its five products.
//
//   straight_through   nothing is rounded beyond the forward's Q, K and V
//   direct_p           P, V, dS in e4m3 under fixed power-of-two lifts, dO in e5m2 (arXiv 2609.04105). The lifts suit
//                      dO of order one: scale the loss accordingly
//   attn_qat           all products bf16; P as the forward rounds it for dV, unrounded for dS (arXiv 2603.00040)
//   full_stack_fp4     dS K and dS^T Q in nvfp4 along the summed axis, the rest bf16 (arXiv 2607.04422)
#pragma once

#include <cstdint>
#include <vector>

#include "attention/reference/operands.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::reference {

inline constexpr float kDirectLiftP = 256.0F;
inline constexpr float kDirectLiftV = 8.0F;    // saturates at |v| > 56
inline constexpr float kDirectLiftDs = 64.0F;  // saturates at |dS| > 7

/// dO as P^T dO and dO V^T read it.
template <class Real>
[[nodiscard]] std::vector<Real> rule_d_out(BackwardRule rule, std::vector<Real> d_out);
/// V [n, d_v] as dO V^T reads it, mean included.
template <class Real>
[[nodiscard]] std::vector<Real> rule_values(BackwardRule rule, const KeyOperands<Real>& keys);
/// One row of P as P^T dO reads it. `logits` and `lse` are those P came from.
template <class Real>
[[nodiscard]] std::vector<Real> rule_probabilities(const Recipe& recipe, const std::vector<Real>& p,
                                                   const std::vector<Real>& logits, Real lse);

/// Left and right operand of dS K ([rows, n] x [n, d]) and of dS^T Q ([n, rows] x [rows, d]), means left out.
template <class Real>
struct ScoreProducts {
  std::vector<Real> ds_k, k;  // [rows, n], [n, d]
  std::vector<Real> ds_q, q;  // [rows, n] (read transposed), [rows, d]
};
template <class Real>
[[nodiscard]] ScoreProducts<Real> rule_score_products(BackwardRule rule, const std::vector<Real>& ds,
                                                      const KeyOperands<Real>& keys, const QueryOperands<Real>& q,
                                                      std::int64_t d);

}  // namespace mpfa::reference
