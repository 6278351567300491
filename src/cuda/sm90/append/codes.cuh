// Elements to codes, 16 at a time. Every result is that of the codecs of formats/elements.hpp for the correctly rounded
// quotient; the fast ways here are for values that neither saturate nor are all but zero.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/sm90/append/params.h"
#include "formats/elements.hpp"

namespace mpfa::sm90 {

struct Counts {
  std::uint32_t nonfinite = 0, saturated = 0, flushed = 0;
};

/// 1 / f, correctly rounded for f in the range that Quotient calls not slow.
__device__ __forceinline__ float inverse_of(float f) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(f));
  return __fmaf_rn(__fmaf_rn(-f, inverse, 1.0F), inverse, inverse);
}

/// x / factor, correctly rounded where quotients are at least 2^-10: Markstein's division by a rounded inverse, which
/// takes factors in a middle range whose bits are not all ones.
struct Quotient {
  float factor = 1.0F, inverse = 1.0F;
  bool slow = false;

  Quotient() = default;
  __device__ explicit Quotient(float f) : Quotient(f, !(f > 0x1p-60F && f < 0x1p60F) || all_ones(f)) {}
  __device__ Quotient(float f, bool is_slow) : factor(f), slow(is_slow) { inverse = inverse_of(f); }
  static __device__ bool all_ones(float f) { return (formats::float_bits(f) & 0x7FFFFFU) == 0x7FFFFFU; }
  __device__ float operator()(float v) const {
    const float q = __fmul_rn(v, inverse);
    return __fmaf_rn(__fmaf_rn(-q, factor, v), inverse, q);
  }
};

/// v / kDivisor for v of any size.
template <int kDivisor>
__device__ __forceinline__ float divide_by(float v) {
  constexpr float kInverse = 1.0F / kDivisor;
  if (v < 0x1p-90F) return __fdiv_rn(v, kDivisor);
  const float q = __fmul_rn(v, kInverse);
  return __fmaf_rn(__fmaf_rn(-q, kDivisor, v), kInverse, q);
}

/// Division by a power of two is multiplication by its inverse. slow: twice or half the inverse is no normal number.
struct PowerOfTwo {
  float factor = 1.0F, inverse = 1.0F;
  bool slow = false;
  __device__ float operator()(float v) const { return __fmul_rn(v, inverse); }
};

template <class Codec>
inline constexpr int kWords = kChunk* Codec::kBits / 32;

/// Words start here so that adding codes + offset, shifted to their places, leaves the codes.
template <int kBits>
__host__ __device__ constexpr std::uint32_t without_offsets(std::uint32_t offset) {
  std::uint32_t sum = 0;
  for (int i = 0; i < 32; i += kBits) sum += offset << i;
  return 0U - sum;
}

/// codes + offset of 32 / kBits elements to a word.
template <int kBits, std::uint32_t kOffset, class Fn>
__device__ __forceinline__ std::uint32_t pack(Fn&& code) {
  std::uint32_t word = without_offsets<kBits>(kOffset);
#pragma unroll
  for (int i = 0; i < 32 / kBits; ++i) word += code(i) << (kBits * i);
  return word;
}

/// Fast codes of elements: kLimit is a bound of |x| / factor.
template <class Codec>
struct FastCodes;

template <>
struct FastCodes<formats::E2M1> {
  static constexpr float kLimit = 15.0F;  // codes on the continued grid have 4 bits

  /// |q| to nearest, ties to even, on the grid continued past 6, as the lowest of the three grids' lines: steps of 0.5
  /// from code 0, of 1 from code 2, of 2 from code 4. Adding 2^23 rounds to integers.
  static __device__ __forceinline__ std::uint32_t code(float v, const Quotient& divide) {
    const float abs = divide(fabsf(v));
    return lowest(__fmaf_rn(abs, 2.0F, 0x1p23F), __fadd_rn(abs, 0x1p23F + 2.0F), __fmaf_rn(abs, 0.5F, 0x1p23F + 4.0F));
  }
  /// Products with powers of two are exact, so that one rounding is left.
  static __device__ __forceinline__ std::uint32_t code(float v, const PowerOfTwo& divide) {
    const float abs = fabsf(v), inverse = divide.inverse;
    return lowest(__fmaf_rn(abs, 2.0F * inverse, 0x1p23F), __fmaf_rn(abs, inverse, 0x1p23F + 2.0F),
                  __fmaf_rn(abs, 0.5F * inverse, 0x1p23F + 4.0F));
  }
  static __device__ __forceinline__ std::uint32_t lowest(float a, float b, float c) {
    return __vimin3_u32(formats::float_bits(a), formats::float_bits(b), formats::float_bits(c));
  }
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[2], std::uint32_t& saturated) {
    constexpr std::uint32_t kOffset = 0x4B000000U;  // 2^23
    std::uint32_t over[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      words[w] = pack<4, kOffset>([&](int i) { return code(x[8 * w + i], divide); });
      over[w] = words[w] & 0x88888888U;
      words[w] = (words[w] | (over[w] - (over[w] >> 3))) & 0x77777777U;
      std::uint32_t signs = 0;
#pragma unroll
      for (int i = 7; i >= 0; --i) signs = __funnelshift_l(formats::float_bits(x[8 * w + i]), signs, 4);
      words[w] |= signs & 0x88888888U;
    }
    saturated += __popc(over[0] >> 3 | over[1]);
  }
};

template <>
struct FastCodes<formats::E4M3> {
  static constexpr float kLimit = 460.0F;
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[4], std::uint32_t& /*saturated*/) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      std::uint32_t pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // The division loses the sign of zeros.
        const float a = x[4 * w + 2 * i], b = x[4 * w + 2 * i + 1];
        const float2 q = make_float2(copysignf(divide(a), a), copysignf(divide(b), b));
        pair[i] = __nv_cvt_float2_to_fp8x2(q, __NV_SATFINITE, __NV_E4M3);
      }
      words[w] = __byte_perm(pair[0], pair[1], 0x5410);
    }
  }
};

/// Two's complement is offset binary with the upper bit turned; 1.5 * 2^23 plus the offset rounds to integers.
template <int kBits, int kHigh>
struct FastCodes<formats::Integer<kBits, -kHigh, kHigh>> {
  static constexpr float kLimit = kHigh + 0.45F;
  template <class Divide, int kCount>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[kCount], std::uint32_t& /*saturated*/) {
    constexpr int kIn = 32 / kBits;
    constexpr float kMagic = 0x1.8p23F;
    constexpr std::uint32_t kOffset = 0x4B400000U;
    static_assert(formats::float_bits(kMagic) == kOffset);
    constexpr std::uint32_t kTop = 0U - without_offsets<kBits>(1U << (kBits - 1));
    constexpr float kHalf = 1 << (kBits - 1);
#pragma unroll
    for (int w = 0; w < kCount; ++w) {
      words[w] = kTop ^ pack<kBits, kOffset>([&](int i) {
                   return formats::float_bits(__fadd_rn(divide(x[kIn * w + i]), kMagic + kHalf));
                 });
    }
  }
};

/// No trick: the codec itself.
template <>
struct FastCodes<formats::E3M0> {
  static constexpr float kLimit = 17.0F;
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[2], std::uint32_t& /*saturated*/) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      words[w] = pack<4, 0>([&](int i) {
        const float v = x[8 * w + i];
        return formats::E3M0::encode(copysignf(divide(v), v)).bits;
      });
    }
  }
};

template <>
struct FastCodes<formats::Bf16> {
  static constexpr float kLimit = 0x1p127F;
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& /*none*/,
                                                std::uint32_t (&words)[8], std::uint32_t& /*saturated*/) {
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * w], x[2 * w + 1]);
      words[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
};

template <>
struct FastCodes<formats::F16> {
  static constexpr float kLimit = 65504.0F;
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& /*none*/,
                                                std::uint32_t (&words)[8], std::uint32_t& /*saturated*/) {
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const __half2 pair = __floats2half2_rn(x[2 * w], x[2 * w + 1]);
      words[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
};

/// As formats/quantise.cpp does it, for every value.
template <class Codec>
__device__ __noinline__ void encode_carefully(const float (&x)[kChunk], float factor,
                                              std::uint32_t (&words)[kWords<Codec>], std::uint32_t& saturated) {
  constexpr int kIn = 32 / Codec::kBits;
#pragma unroll 1
  for (int w = 0; w < kWords<Codec>; ++w) {
    std::uint32_t word = 0;
#pragma unroll 1
    for (int i = 0; i < kIn; ++i) {
      const float v = x[kIn * w + i];
      const formats::Code c = Codec::encode(__fdiv_rn(v, factor));
      if (c.saturated && fabsf(v) < INFINITY) ++saturated;
      word |= c.bits << (Codec::kBits * i);
    }
    words[w] = word;
  }
}

}  // namespace mpfa::sm90
