// The scale of a block from its largest magnitude, as formats/scale_rules.hpp chooses it.
#pragma once

#include <type_traits>

#include "cuda/sm90/append/e2m1_codes.cuh"

namespace mpfa::sm90 {

/// A stored scale and the division by what it means, where the fast codes are right.
template <class DivideType>
struct Quick {
  std::uint32_t bits;  // only the bytes of the scale count
  DivideType divide;
  bool taken;
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

/// nvfp4: the factor is the stored code times the scale of the head. `kWhole`: heads have none, so that factors have 4
/// significant bits.
template <bool kWhole>
struct E4m3Scale {
  static constexpr int kChannels = 16;
  static constexpr int kBytes = 1;
  static constexpr std::uint32_t kNan = 0x7FU;
  using Divide = std::conditional_t<kWhole, ShortQuotient, Quotient>;
  Quotient global;
  bool slow = false;  // the head's scale is out of a middle range

  __device__ E4m3Scale(const RowFormat& row, int head) {
    if constexpr (!kWhole) global = Quotient(row.global[head]), slow = !Quotient::takes(global.factor);
  }
  static __device__ std::uint32_t encode(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
  static __device__ float decode(std::uint32_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
  }

  /// What the code that puts amax at `kTarget` is rounded from, where the head's scale is not slow.
  template <int kTarget>
  __device__ float part_for(float amax) const {
    // Not right for the smallest amax, whose code is 0 in any case.
    const float part = kTarget == 4 ? __fmul_rn(amax, 0.25F) : divide_by<kTarget>(amax);
    // 1024 is far past 448 already; more could overflow.
    return kWhole ? part : global(fminf(part, __fmul_rn(global.factor, 1024.0F)));
  }
  template <int kTarget>
  __device__ std::uint32_t careful_code_for(float amax) const {
    const float part = __fdiv_rn(amax, kTarget);
    return encode(kWhole ? part : __fdiv_rn(part, global.factor));
  }
  __device__ float factor_of(std::uint32_t code) const {
    return kWhole ? decode(code) : __fmul_rn(decode(code), global.factor);
  }
  /// Codes that are neither 0 nor at their limit: |x| / factor is below 10.
  __device__ __forceinline__ Quick<Divide> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t code = encode(part_for<6>(formats::bits_float(largest)));
    const float factor = factor_of(code);
    return {code, Divide(factor), code - 1U < 0x7DU && (kWhole || (!slow && Quotient::takes(factor)))};
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&/*x*/)[kChunk]) const {
    const std::uint32_t code = careful_code_for<6>(amax);
    return {code, factor_of(code)};
  }
};

/// Scale of a block of zeros: fp32 scales of 4-bit floats have a code of their own for it.
template <class Codec, class Scale>
__device__ constexpr std::uint32_t zero_scale() {
  constexpr bool kFloat4 = std::is_same_v<Codec, formats::E2M1> || std::is_same_v<Codec, formats::E3M0>;
  return kFloat4 && Scale::kBytes == 4 ? formats::float_bits(-1.0F) : 0U;
}

}  // namespace mpfa::sm90
