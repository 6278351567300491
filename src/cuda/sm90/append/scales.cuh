// The scale of a block from its largest magnitude, as formats/scale_rules.hpp chooses it.
#pragma once

#include <type_traits>

#include "cuda/sm90/append/codes.cuh"

namespace mpfa::sm90 {

/// A stored scale and the division by what it means, where the fast codes are right.
template <class DivideType>
struct Quick {
  std::uint32_t bits = 0;
  DivideType divide;
  bool taken = false;
};
/// A stored scale and what it means, of any finite block that is not zero.
struct Careful {
  std::uint32_t bits;
  float factor;
};

/// Whether bits of a magnitude are in [low, high); high <= 2^127.
__device__ __forceinline__ bool within(std::uint32_t bits, float low, float high) {
  return bits - formats::float_bits(low) < formats::float_bits(high) - formats::float_bits(low);
}

// A scale has kChannels channels, 0: RowFormat::group says how many. quick() gets the bits of the largest magnitude,
// NaN and zero included; careful() a magnitude up to 2^127.

template <class Codec>
struct NoScale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 0;
  __device__ NoScale(const RowFormat& /*row*/, int /*head*/) {}
  __device__ __forceinline__ Quick<PowerOfTwo> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    return {0U, {}, largest < formats::float_bits(FastCodes<Codec>::kLimit)};
  }
  __device__ __forceinline__ Careful careful(float /*amax*/, const float (&/*x*/)[kChunk]) const { return {0U, 1.0F}; }
};

struct HeadScale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 0;
  Quotient divide;
  std::uint32_t limit;

  __device__ HeadScale(const RowFormat& row, int head) : divide(row.global[head]) {
    limit = Quotient::takes(divide.factor) ? formats::float_bits(__fmul_rn(divide.factor, 448.0F)) : 0U;
  }
  __device__ __forceinline__ Quick<Quotient> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    return {0U, divide, largest < limit};
  }
  __device__ __forceinline__ Careful careful(float /*amax*/, const float (&/*x*/)[kChunk]) const {
    return {0U, divide.factor};
  }
};

struct E8m0Scale {
  static constexpr int kChannels = 32;
  static constexpr int kBytes = 1;
  static constexpr std::uint32_t kNan = 0xFFU;
  std::uint32_t carry;

  /// Exponents of limits up to 2^3 round up where the mantissa of amax exceeds the limit's: where this sum carries.
  __device__ E8m0Scale(const RowFormat& row, int /*head*/) {
    carry = row.rule == ScaleRule::floor  ? 0U
            : row.rule == ScaleRule::ceil ? 0x7FFFFFU - (formats::float_bits(6.0F) & 0x7FFFFFU)
                                          : 0x7FFFFFU - (formats::float_bits(7.25F) & 0x7FFFFFU);
  }
  __device__ __forceinline__ Quick<PowerOfTwo> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t sum = largest + carry;
    return {(sum >> 23) - 2U,
            {formats::bits_float(0x80000000U - (sum & 0xFF800000U))},
            within(largest, 0x1p-123F, 0x1p127F)};
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t code = max((formats::float_bits(amax) + carry) >> 23, 2U) - 2U;
    return {code, formats::E8M0::decode(code)};
  }
};

template <int kLimit>
struct F32Scale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 4;
  static constexpr std::uint32_t kNan = formats::kFloatNan;
  __device__ F32Scale(const RowFormat& /*row*/, int /*head*/) {}
  __device__ __forceinline__ Quick<Quotient> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    const float factor = divide_by<kLimit>(formats::bits_float(largest));
    return {formats::float_bits(factor), Quotient(factor), Quotient::takes(factor)};
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&/*x*/)[kChunk]) const {
    const float factor = fmaxf(__fdiv_rn(amax, kLimit), 0x1p-126F);
    return {formats::float_bits(factor), factor};
  }
};

template <int kLimit>
struct F16Scale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 2;
  static constexpr std::uint32_t kNan = 0x7E00U;
  __device__ F16Scale(const RowFormat& /*row*/, int /*head*/) {}
  __device__ __forceinline__ Quick<Quotient> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    const __half half = __float2half_rn(divide_by<kLimit>(formats::bits_float(largest)));
    return {__half_as_ushort(half), Quotient(__half2float(half)), within(largest, kLimit * 0x1p-14F, kLimit * 0x1p15F)};
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&/*x*/)[kChunk]) const {
    const __half half = __float2half_rn(fminf(__fdiv_rn(amax, kLimit), 65504.0F));
    return {__half_as_ushort(half), __half2float(half)};
  }
};

/// nvfp4: the factor is the stored code times the scale of the head.
struct E4m3Scale {
  static constexpr int kChannels = 16;
  static constexpr int kBytes = 1;
  static constexpr std::uint32_t kNan = 0x7FU;
  Quotient global;
  bool whole, slow;  // the head's scale is 1; is out of a middle range

  __device__ E4m3Scale(const RowFormat& row, int head) : global(row.global == nullptr ? 1.0F : row.global[head]) {
    whole = global.factor == 1.0F, slow = !Quotient::takes(global.factor);
  }
  static __device__ std::uint32_t encode(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
  static __device__ float decode(std::uint32_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
  }

  /// Code that puts amax at `kTarget`, where the head's scale is not slow.
  template <int kTarget>
  __device__ std::uint32_t code_for(float amax) const {
    // Not right for the smallest amax, whose code is 0 in any case.
    float part = kTarget == 4 ? __fmul_rn(amax, 0.25F) : divide_by<kTarget>(amax);
    // 1024 is far past 448 already; more could overflow.
    if (!whole) part = global(fminf(part, __fmul_rn(global.factor, 1024.0F)));
    return encode(part);
  }
  template <int kTarget>
  __device__ std::uint32_t careful_code_for(float amax) const {
    return encode(__fdiv_rn(__fdiv_rn(amax, kTarget), global.factor));
  }
  __device__ float factor_of(std::uint32_t code) const { return __fmul_rn(decode(code), global.factor); }
  /// Codes that are neither 0 nor at their limit: |x| / factor is below 10.
  __device__ __forceinline__ Quick<E4m3Divide> taken(std::uint32_t code) const {
    const float factor = factor_of(code);
    Quick<E4m3Divide> q{code, {Quotient(factor), {}, whole}, code - 1U < 0x7DU};
    q.divide.one = ShortQuotient(q.divide.any.inverse);
    if (!whole) q.taken = q.taken && !slow && Quotient::takes(factor);
    return q;
  }
  __device__ __forceinline__ Quick<E4m3Divide> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    return taken(code_for<6>(formats::bits_float(largest)));
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t code = careful_code_for<6>(amax);
    return {code, factor_of(code)};
  }
};

/// nvfp4_4over6. Most blocks are decided by sums that are not rounded as the rule wants it, but differ by more than
/// that can matter; others by the rule as it is written.
struct FourOverSixScale : E4m3Scale {
  using E4m3Scale::E4m3Scale;

  /// Pairs of |x| as bf16: enough to know powers of two.
  struct Pairs {
    __nv_bfloat162 abs[kChunk / 2];
    __device__ explicit Pairs(const float (&x)[kChunk]) {
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) abs[i] = __floats2bfloat162_rn(fabsf(x[2 * i]), fabsf(x[2 * i + 1]));
    }
  };

  /// Squared error, to a part in 2^16 where it is not small. Adding 2^22 times a value rounds it to two bits, adding
  /// 2^22 to multiples of 0.5; how much is added matters only by its power of two, and 8 bits keep it away from the
  /// next one. The lower half of a pair is bits that the upper half may keep.
  static __device__ __forceinline__ float about_error(const float (&x)[kChunk], const Pairs& pairs, float factor) {
    const float inverse = inverse_of(factor);
    const __nv_bfloat162 wide = __float2bfloat162_rn(inverse * 0x1p22F), least = __float2bfloat162_rn(0x1p22F);
    float sum[2] = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      const __nv_bfloat162 magic = __hmax2(__hmul2(pairs.abs[i], wide), least);
      const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(&magic);
      const float add[2] = {formats::bits_float(bits << 16), formats::bits_float(bits)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float abs = fabsf(x[2 * i + j]);
        const float point = __fsub_rn(__fmaf_rn(abs, inverse, add[j]), add[j]);
        const float error = __fmaf_rn(-point, factor, abs);
        sum[j] = __fmaf_rn(error, error, sum[j]);
      }
    }
    return sum[0] + sum[1];
  }

  /// The rule as it is written, for any factor.
  static __device__ __noinline__ float exact_error(const float (&x)[kChunk], float factor, float unit) {
    const Quotient divide(factor);
    const bool slow = !Quotient::takes(factor);
    float sum = 0.0F;
#pragma unroll 8
    for (int i = 0; i < kChunk; ++i) {
      const float abs = fabsf(x[i]), quotient = fminf(slow ? __fdiv_rn(abs, factor) : divide(abs), 16.0F);
      const float power = formats::bits_float(formats::float_bits(quotient) & 0x7F800000U);
      const float magic = fmaxf(__fmul_rn(power, 0x1p22F), 0x1p22F);
      const float point = fminf(__fsub_rn(__fadd_rn(quotient, magic), magic), 6.0F);
      const float error = __fmul_rn(__fsub_rn(abs, factor > 0.0F ? __fmul_rn(point, factor) : 0.0F), unit);
      sum = __fadd_rn(sum, __fmul_rn(error, error));
    }
    return sum;
  }

  static __device__ __forceinline__ bool four_is_better(const float (&x)[kChunk], float amax, float at_four,
                                                        float at_six) {
    const float unit = formats::power_of_two(-min(max(formats::floor_log2(amax), -126), 126));
    const InMemory<float, kChunk> copy = in_memory(x);
    return exact_error(copy.v, at_four, unit) < exact_error(copy.v, at_six, unit);
  }
  __device__ __forceinline__ Quick<E4m3Divide> quick(std::uint32_t largest, const float (&x)[kChunk]) const {
    const float amax = formats::bits_float(largest);
    const std::uint32_t six = code_for<6>(amax), four = code_for<4>(amax);
    const float at_six = factor_of(six), at_four = factor_of(four);
    bool better = false, known = six == four;
    // Normal codes that are not at their limit: |x| / factor is below 7.
    if (six >= 8U && four < 0x7EU && within(largest, 0x1p-40F, 0x1p40F)) {
      const Pairs pairs(x);
      const float of_four = about_error(x, pairs, at_four), of_six = about_error(x, pairs, at_six);
      const float larger = fmaxf(of_four, of_six);
      better = of_four < of_six;
      known = larger > amax * amax * 0x1p-8F && fabsf(of_four - of_six) > larger * 0x1p-14F;
    }
    if (!known && largest - 1U < formats::kFloatInf - 1U) better = four_is_better(x, amax, at_four, at_six);
    return taken(better ? four : six);
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&x)[kChunk]) const {
    const std::uint32_t six = careful_code_for<6>(amax), four = careful_code_for<4>(amax);
    const float at_six = factor_of(six), at_four = factor_of(four);
    return four_is_better(x, amax, at_four, at_six) ? Careful{four, at_four} : Careful{six, at_six};
  }
};

/// Scale of a block of zeros: fp32 scales of 4-bit floats have a code of their own for it.
template <class Codec, class Scale>
__device__ constexpr std::uint32_t zero_scale() {
  constexpr bool kFloat4 = std::is_same_v<Codec, formats::E2M1> || std::is_same_v<Codec, formats::E3M0>;
  return kFloat4 && Scale::kBytes == 4 ? formats::float_bits(-1.0F) : 0U;
}

}  // namespace mpfa::sm90
