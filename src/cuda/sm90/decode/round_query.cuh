// Rounding of query rows to a recipe's 8- and 4-bit formats of q, to the values that round_trip_tokens gives on the
// host.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/decode/config.h"
#include "formats/elements.hpp"

namespace mpfa::sm90 {

/// Two neighbouring q elements as floats.
__device__ __forceinline__ float2 unpack_q(std::uint32_t pair, bool bf16) {
  if (bf16) return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
  return __half22float2(*reinterpret_cast<__half2*>(&pair));
}

/// Two floats as e4m3 and back, as f16.
__device__ __forceinline__ std::uint32_t round_e4m3_halves(float x, float y) {
  std::uint32_t pair;
  asm("{.reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, %1, %2; cvt.rn.f16x2.e4m3x2 %0, t;}" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}
__device__ __forceinline__ float2 round_e4m3(float x, float y) {
  const std::uint32_t pair = round_e4m3_halves(x, y);
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// |x| to nearest, ties to even, on the e2m1 grid continued past 6. Adding a power of two whose last bit is the grid's
/// step at |x| does the rounding.
__device__ __forceinline__ float round_to_grid(float abs) {
  constexpr std::uint32_t kLift = 22U << 23, kLeast = (127U + 22U) << 23;  // a step of 0.5 below 2
  const float magic = formats::bits_float(__viaddmax_u32(formats::float_bits(abs) & 0x7F800000U, kLift, kLeast));
  return __fsub_rn(__fadd_rn(abs, magic), magic);
}

/// The thread's 8 channels of a chunk of 32, minus `mean` (of these channels, or null), as nvfp4 and back: blocks of 16
/// are those of threads t and t ^ 1. `q` becomes bf16 pairs, which hold every nvfp4 value.
__device__ __forceinline__ void round_nvfp4(std::uint32_t (&q)[4], bool bf16, const float* mean) {
  namespace f = formats;
  float x[8];
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 two = unpack_q(q[i / 2], bf16);
    x[i] = i % 2 == 0 ? two.x : two.y;
    if (mean != nullptr) x[i] = __fsub_rn(x[i], mean[i]);
    largest = max(largest, f::float_bits(x[i]) & f::kFloatAbs);
  }
  largest = max(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
  const float amax = fminf(f::bits_float(largest), 0x1p127F);
  const float factor = round_e4m3(__fdiv_rn(amax, 6.0F), 0.0F).x;
  const auto value = [factor](float v) { return fminf(round_to_grid(fminf(__fdiv_rn(v, factor), 16.0F)), 6.0F); };
  const bool zero = !(factor > 0.0F) || value(amax) == 0.0F;
  std::uint32_t bits[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float rounded = zero ? 0.0F : copysignf(value(fabsf(x[i])), x[i]) * factor;
    bits[i] = largest >= f::kFloatInf ? f::kFloatNan : f::float_bits(rounded);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) q[i] = __byte_perm(bits[2 * i], bits[2 * i + 1], 0x7632);
}

/// A row whose largest magnitude is `largest` as fp8_e4m3 or int8 with one scale: the values of codes, and their
/// factor.
template <Operand kOperand>
struct RowRounding {
  static constexpr bool kE4m3 = kOperand == Operand::e4m3;
  float factor;
  bool zero, broken;

  __device__ __forceinline__ explicit RowRounding(float largest) {
    broken = formats::float_bits(largest) >= formats::kFloatInf;
    const float amax = fminf(largest, 0x1p127F);
    factor = fmaxf(__fdiv_rn(amax, kE4m3 ? 448.0F : 127.0F), 0x1p-126F);
    zero = values({amax, 0.0F}).x == 0.0F;
  }
  [[nodiscard]] __device__ __forceinline__ float2 operator()(float2 x) const {
    const float other = broken ? formats::bits_float(formats::kFloatNan) : 0.0F;
    return broken || zero ? make_float2(other, other) : values(x);
  }

 private:
  [[nodiscard]] __device__ __forceinline__ float2 values(float2 x) const {
    const float2 q = {__fdiv_rn(x.x, factor), __fdiv_rn(x.y, factor)};
    return kE4m3 ? round_e4m3(q.x, q.y) : make_float2(rintf(q.x), rintf(q.y));
  }
};

}  // namespace mpfa::sm90
