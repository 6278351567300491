// From stored bytes to MMA operands in registers.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/operand.h"

namespace mpfa::sm90 {

__device__ __forceinline__ std::uint32_t half2_bits(__half2 h) {
  return *reinterpret_cast<std::uint32_t*>(&h);
}
__device__ __forceinline__ __half2 bits_half2(std::uint32_t b) {
  return *reinterpret_cast<__half2*>(&b);
}
__device__ __forceinline__ std::uint32_t multiply_half2(std::uint32_t a, std::uint32_t b) {
  return half2_bits(__hmul2(bits_half2(a), bits_half2(b)));
}
__device__ __forceinline__ std::uint32_t add_half2(std::uint32_t a, std::uint32_t b) {
  return half2_bits(__hadd2(bits_half2(a), bits_half2(b)));
}

/// Eight e2m1 codes of a word as f16 pairs: f[n] = (code n, code n + 4), each times 2^-14.
/// An e2m1 code is the sign, exponent and first mantissa bit of an f16 whose other exponent bits are zero; f16
/// subnormals make the code 0.5 come out right. Two codes at a time are brought to the upper bytes of two halves.
__device__ __forceinline__ void expand_e2m1(std::uint32_t w, std::uint32_t (&f)[4]) {
  constexpr std::uint32_t kSigns = 0x80808080U, kCode = 0x8E008E00U;
  const std::uint32_t up = w << 4, down = w >> 3, left = w << 1;
  std::uint32_t odd, even;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(odd) : "r"(w), "r"(down), "n"(kSigns));
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(even) : "r"(up), "r"(left), "n"(kSigns));
  f[3] = odd & kCode;
  f[2] = even & kCode;
  f[1] = odd << 8 & kCode;
  f[0] = even << 8 & kCode;
}

/// Eight int4 codes of a word in the same order, each times 2^-9. A code with its sign bit flipped is 8 more than its
/// value; as the lowest bits of an f16 it counts the steps of its subnormals, 2^-24, or sixteen of them.
__device__ __forceinline__ void expand_int4(std::uint32_t w, std::uint32_t (&f)[4]) {
  constexpr std::uint32_t kLow = 0x000F000FU, kHigh = 0x00F000F0U;
  constexpr std::uint32_t kTo15 = 0x78007800U, kTo11 = 0x68006800U, kMinus8 = 0xA400A400U;  // 2^15, 2^11, -8 * 2^-9
  w ^= 0x88888888U;
  const std::uint32_t upper = w >> 8;
  const auto lift = [](std::uint32_t x, std::uint32_t by) {
    return half2_bits(__hfma2(bits_half2(x), bits_half2(by), bits_half2(kMinus8)));
  };
  f[0] = lift(w & kLow, kTo15), f[1] = lift(w & kHigh, kTo11);
  f[2] = lift(upper & kLow, kTo15), f[3] = lift(upper & kHigh, kTo11);
}

/// Two e4m3 bytes as f16.
__device__ __forceinline__ std::uint32_t e4m3_pair(std::uint32_t bytes) {
  std::uint32_t h;
  asm("{.reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t;}" : "=r"(h) : "r"(bytes));
  return h;
}

/// Bytes (0, 1) and (2, 3) of a word, or with kColumns (0, 2) and (1, 3), as f16 pairs.
template <Operand kOperand, bool kColumns>
__device__ __forceinline__ void expand_bytes(std::uint32_t w, std::uint32_t (&f)[2]) {
  if constexpr (kOperand == Operand::e4m3) {
    if constexpr (kColumns) w = __byte_perm(w, 0, 0x3120);
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(f[0]), "=r"(f[1])
        : "r"(w));
  } else {
    // A byte with its sign bit flipped is 128 more than its value; as low byte of an f16 it counts steps above 1024.
    constexpr std::uint32_t kBase = 0x64646464U, kMinus1152 = 0xE480E480U;
    w ^= 0x80808080U;
    f[0] = add_half2(__byte_perm(w, kBase, kColumns ? 0x4240 : 0x4140), kMinus1152);
    f[1] = add_half2(__byte_perm(w, kBase, kColumns ? 0x4341 : 0x4342), kMinus1152);
  }
}

/// How the 32 bytes of two neighbouring 16-byte chunks of 16 keys, loaded by load_matrices (words: chunk 0 keys 0 to 7,
/// chunk 0 keys 8 to 15, chunk 1 the same), become A operands of 16 x 16. Part e of them comes from chunk e, except
/// that 16-bit elements have one part of both chunks. An MMA takes the channels 16 i.. of the row, in an order that is
/// the same for K and q, and for V is said by value_channel.
template <Operand kOperand>
struct Chunks {
  static constexpr int kBits = kOperandInfo<kOperand>.bits;
  static constexpr int kParts = kBits == 16 ? 1 : 2;
  static constexpr int kSteps = 16 / kBits;  // MMAs of both chunks
  static constexpr int kPartSteps = kSteps / kParts;

  template <bool kColumns>
  __device__ __forceinline__ static void expand(const std::uint32_t (&w)[4], int part,
                                                std::uint32_t (&a)[kPartSteps][4]) {
    // Registers 1 and 2 of A are rows 8 to 15 and columns 8 to 15; keys are rows, or columns.
    constexpr int kKeys = kColumns ? 2 : 1, kChannels = kColumns ? 1 : 2;
    if constexpr (kBits == 4) {
      std::uint32_t low[4], high[4];
      if constexpr (kOperand == Operand::int4) {
        expand_int4(w[2 * part], low);
        expand_int4(w[2 * part + 1], high);
      } else {
        expand_e2m1(w[2 * part], low);
        expand_e2m1(w[2 * part + 1], high);
      }
#pragma unroll
      for (int s = 0; s < kPartSteps; ++s) {
        a[s][0] = low[2 * s], a[s][kChannels] = low[2 * s + 1];
        a[s][kKeys] = high[2 * s], a[s][3] = high[2 * s + 1];
      }
    } else if constexpr (kBits == 8) {
      std::uint32_t low[2], high[2];
      expand_bytes<kOperand, kColumns>(w[2 * part], low);
      expand_bytes<kOperand, kColumns>(w[2 * part + 1], high);
      a[0][0] = low[0], a[0][kChannels] = low[1], a[0][kKeys] = high[0], a[0][3] = high[1];
    } else {
      a[0][0] = w[0], a[0][kKeys] = w[1], a[0][kChannels] = w[2], a[0][3] = w[3];
    }
  }
  /// Rows are keys.
  __device__ __forceinline__ static void expand_keys(const std::uint32_t (&w)[4], int part,
                                                     std::uint32_t (&a)[kPartSteps][4]) {
    expand<false>(w, part, a);
  }
  /// Rows are channels, from a transposed load.
  __device__ __forceinline__ static void expand_values(const std::uint32_t (&w)[4], int part,
                                                       std::uint32_t (&a)[kPartSteps][4]) {
    expand<true>(w, part, a);
  }
};

/// Channel of element i of quad `quad` of a row of outputs: quad 8 c + g holds what thread g of a column has of chunk
/// c, rows g and g + 8 of two MMAs.
template <Operand kOperand>
__device__ __forceinline__ int value_channel(int quad, int i) {
  constexpr int kBits = kOperandInfo<kOperand>.bits;
  if constexpr (kBits == 4) return quad * 4 + i;
  const int c = quad / 8, g = quad % 8;
  return kBits == 8 ? c * 32 + i / 2 * 16 + g * 2 + i % 2 : c * 32 + i * 8 + g;
}

/// Quad and element of a channel: the inverse.
template <Operand kOperand>
__device__ __forceinline__ int2 channel_place(int channel) {
  constexpr int kBits = kOperandInfo<kOperand>.bits;
  if constexpr (kBits == 4) return make_int2(channel / 4, channel % 4);
  const int quads = channel / 32 * 8, rest = channel % 32;
  return kBits == 8 ? make_int2(quads + rest % 16 / 2, rest / 16 * 2 + rest % 2)
                    : make_int2(quads + rest % 8, rest / 8);
}

/// 2^(byte - 127) of byte `i` of a word of e8m0 codes; 0 for byte 0, Inf for byte 255 (NaN).
__device__ __forceinline__ float e8m0_scale(std::uint32_t word, int i) {
  const std::uint32_t bits = i == 3 ? word >> 1 : word << (23 - 8 * i);
  return __uint_as_float(bits & 0x7F800000U);
}

}  // namespace mpfa::sm90
