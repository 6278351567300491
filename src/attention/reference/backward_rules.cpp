#include "attention/reference/backward_rules.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/logit.hpp"
#include "attention/probabilities.hpp"
#include "cache/convert.hpp"
#include "formats/elements.hpp"

namespace mpfa::reference {
namespace {

constexpr BlockFormat kNvfp4{Element::e2m1, ScaleType::e4m3, ScaleRule::amax, PackAxis::head_dim, 16, 1};
constexpr std::int64_t kNvBlock = 16;

template <class Code, class Real>
void round_to(std::vector<Real>& x, float lift = 1.0F) {
  for (Real& v : x) v = static_cast<Real>(Code::decode(Code::encode(static_cast<float>(v) * lift).bits) / lift);
}

/// nvfp4 of a matrix [rows, columns], blocks along the columns; a last partial block is padded with zeros.
template <class Real>
std::vector<Real> nvfp4_along_columns(const std::vector<Real>& x, std::int64_t columns, Real global) {
  const std::int64_t rows = columns == 0 ? 0 : static_cast<std::int64_t>(x.size()) / columns;
  const std::int64_t padded = (columns + kNvBlock - 1) / kNvBlock * kNvBlock;
  std::vector<float> in(static_cast<std::size_t>(rows * padded), 0.0F);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) in[r * padded + c] = static_cast<float>(x[r * columns + c] / global);
  }
  std::vector<float> out(in.size());
  round_trip_tokens(kNvfp4, padded, rows, in.data(), padded, out.data(), padded, nullptr);
  std::vector<Real> result(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      result[r * columns + c] = static_cast<Real>(out[r * padded + c]) * global;
    }
  }
  return result;
}

template <class Real>
std::vector<Real> transpose(const std::vector<Real>& x, std::int64_t columns) {
  const std::int64_t rows = columns == 0 ? 0 : static_cast<std::int64_t>(x.size()) / columns;
  std::vector<Real> y(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) y[c * rows + r] = x[r * columns + c];
  }
  return y;
}

template <class Real>
std::vector<Real> nvfp4_along_rows(const std::vector<Real>& x, std::int64_t columns, Real global) {
  const std::int64_t rows = columns == 0 ? 0 : static_cast<std::int64_t>(x.size()) / columns;
  return transpose(nvfp4_along_columns(transpose(x, columns), rows, global), rows);
}

/// Sends the largest magnitude to the top of e4m3 x e2m1: gradients are far below what one level of scales reaches.
template <class Real>
Real gradient_scale(const std::vector<Real>& x) {
  Real amax = 0;
  for (const Real v : x) amax = std::max(amax, std::abs(v));
  return amax > 0 ? amax / (448 * 6) : Real{1};
}

}  // namespace

template <class Real>
std::vector<Real> rule_d_out(BackwardRule rule, std::vector<Real> d_out) {
  if (rule == BackwardRule::direct_p) round_to<formats::E5M2>(d_out);
  if (rule == BackwardRule::attn_qat || rule == BackwardRule::full_stack_fp4) round_to<formats::Bf16>(d_out);
  return d_out;
}

template <class Real>
std::vector<Real> rule_values(BackwardRule rule, const KeyOperands<Real>& keys) {
  const std::size_t d = keys.v_mean.size();
  const bool from_given = rule == BackwardRule::direct_p;  // e4m3 takes the place of the forward's 4-bit V
  std::vector<Real> v(keys.v.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = (from_given ? static_cast<Real>(keys.v_given[i]) : keys.v[i]) + static_cast<Real>(keys.v_mean[i % d]);
  }
  if (rule == BackwardRule::direct_p) round_to<formats::E4M3>(v, kDirectLiftV);
  if (rule == BackwardRule::attn_qat || rule == BackwardRule::full_stack_fp4) round_to<formats::Bf16>(v);
  return v;
}

template <class Real>
std::vector<Real> rule_probabilities(const Recipe& recipe, const std::vector<Real>& p, const std::vector<Real>& logits,
                                     Real lse) {
  std::vector<Real> rounded = p;
  if (recipe.backward == BackwardRule::direct_p) round_to<formats::E4M3>(rounded, kDirectLiftP);
  if (recipe.backward == BackwardRule::attn_qat) {
    // The forward's codes are relative to the row maximum, so the same rounding is made there.
    const Real top = *std::max_element(logits.begin(), logits.end());
    const Real norm = std::exp(top - lse);
    const auto n = static_cast<std::int64_t>(p.size());
    for (std::int64_t tile = 0; tile < n; tile += kKeyTile) {
      const std::int64_t count = std::min(kKeyTile, n - tile);
      std::array<float, kKeyTile> log2_p{};
      std::array<float, kKeyTile> out{};
      for (std::int64_t j = 0; j < count; ++j) {
        log2_p[j] = static_cast<float>((logits[tile + j] - top) * static_cast<Real>(kLog2E));
      }
      round_probabilities(recipe.p, recipe.p_scale, log2_p.data(), out.data(), count);
      for (std::int64_t j = 0; j < count; ++j) rounded[tile + j] = static_cast<Real>(out[j]) * norm;
    }
  }
  if (recipe.backward == BackwardRule::attn_qat || recipe.backward == BackwardRule::full_stack_fp4) {
    round_to<formats::Bf16>(rounded);
  }
  return rounded;
}

template <class Real>
ScoreProducts<Real> rule_score_products(BackwardRule rule, const std::vector<Real>& ds, const KeyOperands<Real>& keys,
                                        const QueryOperands<Real>& q, std::int64_t d) {
  ScoreProducts<Real> s{ds, keys.k, ds, q.q};
  switch (rule) {
    case BackwardRule::straight_through: break;
    case BackwardRule::direct_p:
      round_to<formats::E4M3>(s.ds_k, kDirectLiftDs);
      s.ds_q = s.ds_k;
      break;
    case BackwardRule::attn_qat:
      for (std::vector<Real>* x : {&s.ds_k, &s.k, &s.ds_q, &s.q}) round_to<formats::Bf16>(*x);
      break;
    case BackwardRule::full_stack_fp4: {
      const Real global = gradient_scale(ds);
      s.ds_k = nvfp4_along_columns(ds, keys.n, global);
      s.ds_q = nvfp4_along_rows(ds, keys.n, global);
      s.k = nvfp4_along_rows(std::vector<Real>(keys.k_given.begin(), keys.k_given.end()), d, Real{1});
      s.q = nvfp4_along_rows(std::vector<Real>(q.q_given.begin(), q.q_given.end()), d, Real{1});
      break;
    }
  }
  return s;
}

#define MPFA_INSTANTIATE(Real)                                                                                       \
  template std::vector<Real> rule_d_out(BackwardRule, std::vector<Real>);                                            \
  template std::vector<Real> rule_values(BackwardRule, const KeyOperands<Real>&);                                    \
  template std::vector<Real> rule_probabilities(const Recipe&, const std::vector<Real>&, const std::vector<Real>&,   \
                                                Real);                                                               \
  template ScoreProducts<Real> rule_score_products(BackwardRule, const std::vector<Real>&, const KeyOperands<Real>&, \
                                                   const QueryOperands<Real>&, std::int64_t);
MPFA_INSTANTIATE(float)
MPFA_INSTANTIATE(double)
#undef MPFA_INSTANTIATE

}  // namespace mpfa::reference
