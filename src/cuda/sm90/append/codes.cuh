// Elements to codes, 16 at a time. Every result is that of the codecs of formats/elements.hpp for the correctly rounded
// quotient; the fast ways here are for values that neither saturate nor are all but zero.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "cuda/common/ptx.cuh"
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
  float factor = 1.0F, inverse = 1.0F, rest = 0.0F;  // rest: what the inverse lacks

  Quotient() = default;
  __device__ explicit Quotient(float f) : factor(f), inverse(inverse_of(f)) {
    rest = __fmul_rn(__fmaf_rn(-f, inverse, 1.0F), inverse);
  }
  static __device__ bool takes(float f) {
    const std::uint32_t bits = formats::float_bits(f);
    return bits - (67U << 23) < 120U << 23 && (~bits & 0x7FFFFFU) != 0U;  // from 2^-60, below 2^60
  }
  __device__ float operator()(float v) const {
    const float q = __fmul_rn(v, inverse);
    return __fmaf_rn(__fmaf_rn(-q, factor, v), inverse, q);
  }
  /// On the same side of every border between 4-bit codes as the rounded quotient (tried for every significand).
  __device__ float sided(float v) const { return __fmaf_rn(v, inverse, __fmul_rn(v, rest)); }
};

/// The same for factors of at most 4 significant bits, whose products with borders are exact, and v >= 0: one product
/// with the number below the inverse, rounded up (tried for every significand).
struct ShortQuotient {
  float inverse = 1.0F;

  ShortQuotient() = default;
  __device__ explicit ShortQuotient(float f) : inverse(formats::bits_float(formats::float_bits(inverse_of(f)) - 1U)) {}
  __device__ float sided(float v) const { return __fmul_ru(v, inverse); }
};

/// v / kDivisor, correctly rounded for v >= 2^-90.
template <int kDivisor>
__device__ __forceinline__ float divide_by(float v) {
  constexpr float kInverse = 1.0F / kDivisor;
  const float q = __fmul_rn(v, kInverse);
  return (kDivisor & (kDivisor - 1)) == 0 ? q : __fmaf_rn(__fmaf_rn(-q, kDivisor, v), kInverse, q);
}

/// Division by a power of two is multiplication by its inverse, where twice and half of that are normal numbers.
struct PowerOfTwo {
  float inverse = 1.0F;
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

/// Fast codes of elements that are finite and whose quotients are below 1.5 times the largest code's value; adds to
/// `saturated` where `counted`.
template <class Codec>
struct FastCodes;

template <>
struct FastCodes<formats::E4M3> {
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[4], bool /*counted*/,
                                                std::uint32_t& /*saturated*/) {
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
  template <class Divide, int kCount>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[kCount], bool /*counted*/,
                                                std::uint32_t& /*saturated*/) {
    constexpr int kIn = 32 / kBits;
    constexpr float kMagic = 0x1.8p23F;
    constexpr std::uint32_t kOffset = 0x4B400000U;
    static_assert(formats::float_bits(kMagic) == kOffset);
    constexpr std::uint32_t kTop = 0U - without_offsets<kBits>(1U << (kBits - 1));
    constexpr float kHalf = 1 << (kBits - 1);
#pragma unroll
    for (int w = 0; w < kCount; ++w) {
      words[w] = kTop ^ pack<kBits, kOffset>([&](int i) {
                   const float v = x[kIn * w + i];
                   return formats::float_bits(__fadd_rn(kBits == 4 ? divide.sided(v) : divide(v), kMagic + kHalf));
                 });
    }
  }
};

/// Powers of two: the exponent after adding half of a step to the bits, ties to even. From 0 to 0.25 is a step as well,
/// which ends before the half.
template <>
struct FastCodes<formats::E3M0> {
  /// Bits 23 to 25 are the code: 0.125, where code 0 ends, has exponent 124 and is taken for 2.
  static __device__ __forceinline__ std::uint32_t rounded(float v, const Quotient& divide) {
    constexpr std::uint32_t kZero = 128U << 23, kHalf = 0x3FFFFFU;
    const std::uint32_t abs = formats::float_bits(divide.sided(fabsf(v)));
    const std::uint32_t odd = ptx::spread_sign<2>(abs);  // of bit 23
    const std::uint32_t low = __viaddmin_u32(abs, 2 * kHalf + 1U, kZero + (1U << 23));
    return __vimax3_u32(abs + kHalf - odd, low, kZero);
  }
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Quotient& divide,
                                                std::uint32_t (&words)[2], bool /*counted*/,
                                                std::uint32_t& /*saturated*/) {
    Quotient larger = divide;
    larger.inverse *= 16.0F, larger.rest *= 16.0F;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      std::uint32_t word = 0;
#pragma unroll
      for (int i = 7; i >= 0; --i) {
        const float v = x[8 * w + i];
        const std::uint32_t code = rounded(v, larger) << 5 | (formats::float_bits(v) & 0x80000000U);
        word = __funnelshift_l(code, word, 4);
      }
      words[w] = word;
    }
  }
};

template <>
struct FastCodes<formats::Bf16> {
  static constexpr float kLimit = 0x1p127F;  // of |x|
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& /*none*/,
                                                std::uint32_t (&words)[8], bool /*counted*/,
                                                std::uint32_t& /*saturated*/) {
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
                                                std::uint32_t (&words)[8], bool /*counted*/,
                                                std::uint32_t& /*saturated*/) {
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const __half2 pair = __floats2half2_rn(x[2 * w], x[2 * w + 1]);
      words[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
};

/// What functions that are not inlined read and write. It is no array by itself: compilers give arrays of one type one
/// place, and one that is read from memory would take those with it that lie in registers.
template <class T, int kCount>
struct InMemory {
  T v[kCount];
};

__device__ __forceinline__ InMemory<float, kChunk> in_memory(const float (&x)[kChunk]) {
  InMemory<float, kChunk> copy;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) copy.v[i] = x[i];
  return copy;
}

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
