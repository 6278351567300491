// From stored bytes to MMA operands in registers.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/common/ptx.cuh"

namespace mpfa::sm90 {

/// Eight e2m1 codes of a word as f16 pairs: f[n] = (code n, code n + 4), each times 2^-14.
/// An e2m1 code is the sign, exponent and first mantissa bit of an f16 whose other exponent bits are zero; f16
/// subnormals make the code 0.5 come out right. Two codes at a time are brought to the upper bytes of two halves.
__device__ __forceinline__ void expand_codes(std::uint32_t w, std::uint32_t (&f)[4]) {
  constexpr std::uint32_t kSigns = 0x80808080U, kMagnitudes = 0x0E0E0E0EU, kUpper = 0xFF00FF00U;
  const std::uint32_t odd = (w & kSigns) | ((w >> 3) & kMagnitudes);
  const std::uint32_t even = ((w << 4) & kSigns) | ((w << 1) & kMagnitudes);
  f[3] = odd & kUpper;
  f[2] = even & kUpper;
  f[1] = __byte_perm(odd, 0, 0x2404);
  f[0] = __byte_perm(even, 0, 0x2404);
}
inline constexpr float kCodeUnit = 0x1p14F;  // what expand_codes leaves out

__device__ __forceinline__ std::uint32_t half2_bits(__half2 h) {
  return *reinterpret_cast<std::uint32_t*>(&h);
}
__device__ __forceinline__ std::uint32_t multiply_half2(std::uint32_t a, std::uint32_t b) {
  return half2_bits(__hmul2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b)));
}

/// Two e4m3 bytes as f16.
__device__ __forceinline__ std::uint32_t e4m3_pair(std::uint32_t bytes) {
  std::uint32_t h;
  asm("{.reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t;}" : "=r"(h) : "r"(bytes));
  return h;
}

/// 2^(byte - 127) of byte `i` of a word of e8m0 codes; 0 for byte 0, Inf for byte 255 (NaN).
__device__ __forceinline__ float e8m0_scale(std::uint32_t word, int i) {
  const std::uint32_t bits = i == 3 ? word >> 1 : word << (23 - 8 * i);
  return __uint_as_float(bits & 0x7F800000U);
}

}  // namespace mpfa::sm90
