// e2m1 codes and query rows as e4m3, whose MMAs take 32 channels at a time.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/round_query.cuh"

namespace mpfa::sm90 {

/// Eight e2m1 codes of a word as e4m3 bytes, each times 2^-6: byte k of `even` is code 2 k, of `odd` code 2 k + 1. An
/// e2m1 code is the sign, the lower exponent bits and the first mantissa bit of an e4m3, subnormals too.
__device__ __forceinline__ void expand_e2m1_bytes(std::uint32_t w, std::uint32_t& even, std::uint32_t& odd) {
  constexpr std::uint32_t kSigns = 0x80808080U, kMagnitudes = 0x1C1C1C1CU;
  even = ((w << 4) & kSigns) | ((w << 2) & kMagnitudes);
  odd = (w & kSigns) | ((w >> 2) & kMagnitudes);
}

/// Four values as e4m3 bytes; they become what is left of them.
__device__ __forceinline__ std::uint32_t take_e4m3(float (&v)[4]) {
  std::uint32_t bytes;
  asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; "
      "mov.b32 %0, {l, h};}"
      : "=r"(bytes)
      : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float2 taken = round_e4m3(v[i], v[i + 1]);
    v[i] -= taken.x, v[i + 1] -= taken.y;
  }
  return bytes;
}

}  // namespace mpfa::sm90
