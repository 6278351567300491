// The scale of a block from its largest magnitude, as formats/scale_rules.hpp chooses it.
#pragma once

#include <type_traits>

#include "cuda/sm90/append/codes.cuh"

namespace mpfa::sm90 {

/// A stored scale, the division by what it means, and about amax divided by it.
template <class DivideType>
struct Scaled {
  std::uint32_t bits = 0;
  DivideType divide;
  float top = 0.0F;

  Scaled() = default;
  __device__ Scaled(std::uint32_t code, const DivideType& d, float amax) : bits(code), divide(d) {
    top = __fmul_rn(amax, d.inverse);
  }
};

// kChannels: those that share a scale; 0: RowFormat::group says it.

struct NoScale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 0;
  using Divide = PowerOfTwo;
  __device__ NoScale(const RowFormat& /*row*/, int /*head*/) {}
  __device__ Scaled<Divide> fixed(float amax) const { return {0U, {}, amax}; }
};

struct HeadScale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 0;
  using Divide = Quotient;
  Quotient divide;
  __device__ HeadScale(const RowFormat& row, int head) : divide(row.global[head]) {}
  __device__ Scaled<Divide> fixed(float amax) const { return {0U, divide, amax}; }
};

struct E8m0Scale {
  static constexpr int kChannels = 32;
  static constexpr int kBytes = 1;
  static constexpr std::uint32_t kNan = 0xFFU;
  using Divide = PowerOfTwo;
  std::uint32_t carry;

  /// Exponents of limits up to 2^3 round up where the mantissa of amax exceeds the limit's: where this sum carries.
  __device__ E8m0Scale(const RowFormat& row, int /*head*/) {
    carry = row.rule == ScaleRule::floor  ? 0U
            : row.rule == ScaleRule::ceil ? 0x7FFFFFU - (formats::float_bits(6.0F) & 0x7FFFFFU)
                                          : 0x7FFFFFU - (formats::float_bits(7.25F) & 0x7FFFFFU);
  }
  __device__ Scaled<Divide> choose(float amax, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t code = max((formats::float_bits(amax) + carry) >> 23, 2U) - 2U;
    return {code, {formats::E8M0::decode(code), formats::bits_float((254U - code) << 23), code - 1U >= 252U}, amax};
  }
};

template <int kLimit>
struct F32Scale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 4;
  static constexpr std::uint32_t kNan = formats::kFloatNan;
  using Divide = Quotient;
  __device__ F32Scale(const RowFormat& /*row*/, int /*head*/) {}
  __device__ Scaled<Divide> choose(float amax, const float (&/*x*/)[kChunk]) const {
    const float factor = fmaxf(divide_by<kLimit>(amax), 0x1p-126F);
    return {formats::float_bits(factor), Quotient(factor), amax};
  }
};

template <int kLimit>
struct F16Scale {
  static constexpr int kChannels = 0;
  static constexpr int kBytes = 2;
  static constexpr std::uint32_t kNan = 0x7E00U;
  using Divide = Quotient;
  __device__ F16Scale(const RowFormat& /*row*/, int /*head*/) {}
  __device__ Scaled<Divide> choose(float amax, const float (&/*x*/)[kChunk]) const {
    const __half half = __float2half_rn(fminf(divide_by<kLimit>(amax), 65504.0F));
    return {__half_as_ushort(half), Quotient(__half2float(half)), amax};
  }
};

/// nvfp4: the factor is the stored code times the scale of the head.
struct E4m3Scale {
  static constexpr int kChannels = 16;
  static constexpr int kBytes = 1;
  static constexpr std::uint32_t kNan = 0x7FU;
  using Divide = Quotient;
  Quotient global;
  bool whole;  // the head's scale is 1

  __device__ E4m3Scale(const RowFormat& row, int head) : global(row.global == nullptr ? 1.0F : row.global[head]) {
    whole = global.factor == 1.0F;
  }
  static __device__ std::uint32_t encode(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
  static __device__ float decode(std::uint32_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
  }

  /// Code that puts amax at `kTarget`.
  template <int kTarget>
  __device__ std::uint32_t code_for(float amax) const {
    if (global.slow) return encode(__fdiv_rn(__fdiv_rn(amax, kTarget), global.factor));
    constexpr float kInverse = 1.0F / kTarget;
    float part = __fmul_rn(amax, kInverse);
    // Not right for the smallest amax, whose code is 0 in any case.
    if (kTarget != 4) part = __fmaf_rn(__fmaf_rn(-part, kTarget, amax), kInverse, part);
    // 1024 is far past 448 already; more could overflow.
    if (!whole) part = global(fminf(part, __fmul_rn(global.factor, 1024.0F)));
    return encode(part);
  }
  /// Only a head's scale can make it slow.
  __device__ Quotient quotient(float factor) const {
    return Quotient(factor, global.slow || (!whole && Quotient::all_ones(factor)));
  }
  __device__ float factor_of(std::uint32_t code) const { return __fmul_rn(decode(code), global.factor); }
  __device__ Scaled<Divide> choose(float amax, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t code = code_for<6>(amax);
    return {code, quotient(factor_of(code)), amax};
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
    float sum = 0.0F;
#pragma unroll 8
    for (int i = 0; i < kChunk; ++i) {
      const float abs = fabsf(x[i]), quotient = fminf(divide.slow ? __fdiv_rn(abs, factor) : divide(abs), 16.0F);
      const float power = formats::bits_float(formats::float_bits(quotient) & 0x7F800000U);
      const float magic = fmaxf(__fmul_rn(power, 0x1p22F), 0x1p22F);
      const float point = fminf(__fsub_rn(__fadd_rn(quotient, magic), magic), 6.0F);
      const float error = __fmul_rn(__fsub_rn(abs, factor > 0.0F ? __fmul_rn(point, factor) : 0.0F), unit);
      sum = __fadd_rn(sum, __fmul_rn(error, error));
    }
    return sum;
  }

  __device__ Scaled<Divide> choose(float amax, const float (&x)[kChunk]) const {
    const std::uint32_t six = code_for<6>(amax), four = code_for<4>(amax);
    const float at_six = factor_of(six), at_four = factor_of(four);
    bool better = false, known = six == four;
    // Normal codes that are not at their limit: |x| / factor is below 7.
    if (six >= 8U && four < 0x7EU && amax < 0x1p40F && amax > 0x1p-40F) {
      const Pairs pairs(x);
      const float of_four = about_error(x, pairs, at_four), of_six = about_error(x, pairs, at_six);
      const float larger = fmaxf(of_four, of_six);
      better = of_four < of_six;
      known = larger > amax * amax * 0x1p-8F && fabsf(of_four - of_six) > larger * 0x1p-14F;
    }
    if (!known) {
      const float unit = formats::power_of_two(-min(max(formats::floor_log2(amax), -126), 126));
      float copy[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) copy[i] = x[i];
      better = exact_error(copy, at_four, unit) < exact_error(copy, at_six, unit);
    }
    return {better ? four : six, quotient(better ? at_four : at_six), amax};
  }
};

/// Scale of a block of zeros: fp32 scales of 4-bit floats have a code of their own for it.
template <class Codec, class Scale>
__device__ constexpr std::uint32_t zero_scale() {
  constexpr bool kFloat4 = std::is_same_v<Codec, formats::E2M1> || std::is_same_v<Codec, formats::E3M0>;
  return kFloat4 && Scale::kBytes == 4 ? formats::float_bits(-1.0F) : 0U;
}

}  // namespace mpfa::sm90
