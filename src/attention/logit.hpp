// What happens to one scaled logit before the softmax, in the order it happens: cap, softcap, ALiBi, mask tensor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "mpfa/attention.hpp"

namespace mpfa {

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

/// Clamp to +-cap, cap > 0; NaN stays NaN.
template <class Real>
[[nodiscard]] Real cap_logit(Real s, Real cap) {
  return std::clamp(s, -cap, cap);
}

/// cap * tanh(s / cap), cap > 0. Before any mask: afterwards it would turn -inf into -cap.
template <class Real>
[[nodiscard]] Real softcap_logit(Real s, Real cap) {
  return cap * std::tanh(s / cap);
}

/// ALiBi: a penalty of `slope` per token between the row at position p and key j.
template <class Real>
[[nodiscard]] Real alibi_penalty(Real slope, std::int64_t p, std::int64_t j) {
  return slope * static_cast<Real>(p > j ? p - j : j - p);
}

/// Element (b, h, i, j) of the mask tensor as a number to add: 0 or -inf for boolean masks, -inf meaning masked.
[[nodiscard]] inline float mask_bias(const TensorView& mask, std::int64_t b, std::int64_t h, std::int64_t i,
                                     std::int64_t j) {
  const std::int64_t at = (mask.shape[0] == 1 ? 0 : b * mask.stride[0]) +
                          (mask.shape[1] == 1 ? 0 : h * mask.stride[1]) + i * mask.stride[2] + j * mask.stride[3];
  if (mask.dtype == DType::f32) return static_cast<const float*>(mask.data)[at];
  return static_cast<const std::uint8_t*>(mask.data)[at] != 0 ? 0.0F : -std::numeric_limits<float>::infinity();
}

/// All of the above for one logit. `shift` is the part that centring K took out of the row: a softcap needs it back.
template <class Real>
[[nodiscard]] Real finish_logit(const AttentionProblem& p, const AttentionTensors& t, Real s, Real shift,
                                std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t position, std::int64_t j) {
  if (p.recipe.logit_cap > 0.0F) s = cap_logit(s, static_cast<Real>(p.recipe.logit_cap));
  if (p.softcap > 0.0F) s = softcap_logit(s + shift, static_cast<Real>(p.softcap));
  if (p.alibi) s -= alibi_penalty(static_cast<Real>(t.alibi_slopes[h]), position, j);
  if (p.mask == MaskTensor::none) return s;
  const float bias = mask_bias(t.mask, b, h, i, j);
  // By selection: a masked logit may be NaN or +inf, which adding would not remove.
  return bias == -std::numeric_limits<float>::infinity() ? static_cast<Real>(bias) : s + static_cast<Real>(bias);
}

}  // namespace mpfa
