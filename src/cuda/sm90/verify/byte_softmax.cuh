// P beside V of 8 and 16 bits, exact or rounded to e4m3, and the rank-one terms of logits.
#pragma once

#include <cstdint>

#include "cuda/sm90/verify/bytes.cuh"

namespace mpfa::sm90 {

/// Rank-one terms of keys g and g + 8 and the thread's columns, from `at` on in shared memory.
__device__ __forceinline__ void load_terms(const DecodeParams& p, std::uint32_t at, float (&terms)[2][2]) {
  const bool wide = p.rank_one_wide != 0;
  const std::uint32_t keys = 8 * p.group * (wide ? 4 : 2), low = wide ? 0x3210 : 0x5400, high = wide ? 0x7654 : 0x7600;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    std::uint32_t w[2] = {0, 0};
    asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; @p ld.shared.v2.u32 {%0, %1}, [%2]; @!p ld.shared.u32 %1, [%2];}"
                 : "+r"(w[0]), "+r"(w[1])
                 : "r"(at + r * keys), "r"(p.rank_one_wide));
    terms[r][0] = __uint_as_float(__byte_perm(w[0], w[1], low));
    terms[r][1] = __uint_as_float(__byte_perm(w[0], w[1], high));
  }
}

/// Zeros in their place in a stage.
template <class Config>
__device__ __forceinline__ void clear_terms(std::uint32_t stage) {
  static_assert(Config::kStageBytes - Config::kTermsAt == 128 * 16);
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(stage + Config::kTermsAt + threadIdx.x % 128 * 16),
               "r"(0)
               : "memory");
}

/// Makes the terms part of the scores, which may then be hidden: terms of keys that a row does not see may be NaN.
template <class Config>
__device__ __forceinline__ void fold_terms(const DecodeParams& p, const RowTops<Config>& tops, float (&terms)[2][2],
                                           float (&x)[Config::kScores]) {
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    const float4 top = tops.load(n);
    const float unit[2] = {__fdividef(term_unit(p), top.x), __fdividef(term_unit(p), top.y)};
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n * 4 + i] = fmaf(terms[i / 2][i % 2], unit[i % 2], x[n * 4 + i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) terms[i / 2][i % 2] = 0.0F;
}

/// take_probabilities in the formats' 16-bit type, times V's scales of the thread's keys.
template <class Config>
__device__ __forceinline__ bool take_probabilities(const float (&x)[Config::kScores], const float (&scale)[2],
                                                   const float4 (&tops)[Config::kRowTiles],
                                                   float (&sum)[Config::kRowTiles][2],
                                                   std::uint32_t (&pairs)[Config::kRowTiles][2]) {
  constexpr std::uint32_t kTwo = 0x40000000U;  // the bit of 2 and more in f32
  constexpr bool kScaled = TokenScales<Config>::kStored;
  std::uint32_t all = 0;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    const float4 top = tops[n];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = {ptx::exp2_fast(fmaf(x[n * 4 + 2 * r], top.x, -top.z)),
                           ptx::exp2_fast(fmaf(x[n * 4 + 2 * r + 1], top.y, -top.w))};
      all |= __float_as_uint(both.x) | __float_as_uint(both.y);
      const bool begin = !Config::kAddsEarly && r == 0;
      sum[n][0] = begin ? both.x : sum[n][0] + both.x, sum[n][1] = begin ? both.y : sum[n][1] + both.y;
      pairs[n][r] = kScaled ? pack_probabilities<Config>(both.x * scale[r], both.y * scale[r])
                            : pack_probabilities<Config>(both.x, both.y);
    }
  }
  return (all & kTwo) != 0;
}

/// The same of P rounded to e4m3: maxima are so that the largest weight is a code, see maximum_above. terms: added to
/// the logits, kRankOne.
template <class Config>
__device__ __forceinline__ bool take_codes(const DecodeParams& p, const float (&x)[Config::kScores],
                                           const float (&terms)[2][2], const float (&scale)[2],
                                           const float4 (&tops)[Config::kRowTiles], float (&sum)[Config::kRowTiles][2],
                                           std::uint32_t (&pairs)[Config::kRowTiles][2]) {
  const std::uint32_t scales[2] = {half2_bits(__float2half2_rn(scale[0])), half2_bits(__float2half2_rn(scale[1]))};
  const float unit = term_unit(p);
  std::uint32_t largest = 0;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    const float4 top = tops[n];
    float exact[2][2];
    std::uint32_t codes[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float begin[2] = {Config::kRankOne ? fmaf(terms[r][0], unit, -top.z) : -top.z,
                              Config::kRankOne ? fmaf(terms[r][1], unit, -top.w) : -top.w};
      exact[r][0] = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r], top.x, begin[0]));
      exact[r][1] = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r + 1], top.y, begin[1]));
      codes[r] = round_e4m3_halves(exact[r][0], exact[r][1]);
      largest = __vmaxu2(largest, codes[r]);
      pairs[n][r] = multiply_half2(codes[r], scales[r]);
    }
    const float2 rounded = __half22float2(__hadd2(bits_half2(codes[0]), bits_half2(codes[1])));
    sum[n][0] += p.sum_codes != 0 ? rounded.x : exact[0][0] + exact[1][0];
    sum[n][1] += p.sum_codes != 0 ? rounded.y : exact[0][1] + exact[1][1];
  }
  // Twice p_scale and more set the sign.
  return ((largest + (0x80008000U - half2_bits(__float2half2_rn(2.0F * p.p_scale)))) & 0x80008000U) != 0;
}

}  // namespace mpfa::sm90
