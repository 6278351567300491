// Element and scale codecs: float <-> code, exact on bits, usable in constant expressions and in device code.
//
// Encoding rounds to nearest with ties to the even code and saturates at the largest finite value. NaN and Inf follow
// the saturating CUDA conversions: e4m3 and e5m2 NaN -> 0x7F, e2m1 NaN -> +6, Inf -> largest finite value.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MPFA_HD __host__ __device__
#else
#define MPFA_HD
#endif

namespace mpfa::formats {

MPFA_HD constexpr std::uint32_t float_bits(float v) {
  return __builtin_bit_cast(std::uint32_t, v);
}
MPFA_HD constexpr float bits_float(std::uint32_t b) {
  return __builtin_bit_cast(float, b);
}

inline constexpr std::uint32_t kFloatInf = 0x7F800000U;
inline constexpr std::uint32_t kFloatNan = 0x7FC00000U;
inline constexpr std::uint32_t kFloatAbs = 0x7FFFFFFFU;

/// 2^e as a float, -149 <= e <= 127.
MPFA_HD constexpr float power_of_two(int e) {
  return e >= -126 ? bits_float(static_cast<std::uint32_t>(e + 127) << 23) : bits_float(1U << (e + 149));
}

/// A code, and whether the value rounded without a limit would have exceeded the element's largest magnitude.
struct Code {
  std::uint32_t bits;
  bool saturated;
};

/// v >> shift, to nearest, ties to even; 1 <= shift <= 31 and no overflow of v + half.
MPFA_HD constexpr std::uint32_t round_shift(std::uint32_t v, int shift) {
  return (v + (1U << (shift - 1)) - 1U + ((v >> shift) & 1U)) >> shift;
}

/// Sign, kExp exponent bits, kMan mantissa bits. kMax is the code of the largest finite magnitude, kInf the code of
/// infinity (0: none); other codes above kMax are NaN.
template <int kExp, int kMan, int kBias, std::uint32_t kMax, std::uint32_t kInf, std::uint32_t kNan>
struct MiniFloat {
  static constexpr int kBits = 1 + kExp + kMan;
  static constexpr bool kAffine = false;
  static constexpr std::uint32_t kSign = 1U << (kExp + kMan);

  /// Code of a finite or infinite magnitude on the grid continued past kMax. Both cases are computed and one is taken
  /// by a mask, because on data a branch would be a coin toss.
  MPFA_HD static constexpr std::uint32_t round_magnitude(std::uint32_t abs) {
    constexpr std::uint32_t min_normal = static_cast<std::uint32_t>(128 - kBias) << 23;
    constexpr float magic = power_of_two(24 - kBias - kMan);  // its last bit is the subnormal step
    const std::uint32_t normal = round_shift(abs - (static_cast<std::uint32_t>(127 - kBias) << 23), 23 - kMan);
    const std::uint32_t subnormal = float_bits(bits_float(abs) + magic) - float_bits(magic);
    const std::uint32_t small = 0U - ((abs - min_normal) >> 31);
    return (normal & ~small) | (subnormal & small);
  }

  MPFA_HD static constexpr Code encode(float v) {
    const std::uint32_t abs = float_bits(v) & kFloatAbs;
    if (abs > kFloatInf) return {kNan, false};
    const std::uint32_t sign = float_bits(v) >> 31 << (kExp + kMan);
    const std::uint32_t code = round_magnitude(abs);
    return code > kMax ? Code{sign | kMax, true} : Code{sign | code, false};
  }

  MPFA_HD static constexpr float decode(std::uint32_t code) {
    const std::uint32_t sign = (code & kSign) != 0U ? 0x80000000U : 0U;
    const std::uint32_t magnitude = code & (kSign - 1U);
    if (magnitude > kMax) return bits_float(sign | (kInf != 0U && magnitude == kInf ? kFloatInf : kFloatNan));
    const std::uint32_t exponent = magnitude >> kMan;
    const std::uint32_t mantissa = magnitude & ((1U << kMan) - 1U);
    const float abs = exponent == 0U ? static_cast<float>(mantissa) * power_of_two(1 - kBias - kMan)
                                     : bits_float((exponent + 127U - kBias) << 23 | mantissa << (23 - kMan));
    return bits_float(sign | float_bits(abs));
  }
};

using E2M1 = MiniFloat<2, 1, 1, 0x7, 0, 0x7>;
using E3M0 = MiniFloat<3, 0, 3, 0x7, 0, 0x7>;
using E4M3 = MiniFloat<4, 3, 7, 0x7E, 0, 0x7F>;
using E5M2 = MiniFloat<5, 2, 15, 0x7B, 0x7C, 0x7F>;

/// IEEE half. Finite values saturate at 65504; Inf and NaN stay what they are.
struct F16 : MiniFloat<5, 10, 15, 0x7BFF, 0x7C00, 0x7E00> {
  using Base = MiniFloat<5, 10, 15, 0x7BFF, 0x7C00, 0x7E00>;
  MPFA_HD static constexpr Code encode(float v) {
    const std::uint32_t abs = float_bits(v) & kFloatAbs;
    if (abs < kFloatInf) return Base::encode(v);
    return {float_bits(v) >> 31 << 15 | (abs == kFloatInf ? 0x7C00U : 0x7E00U), false};
  }
};

/// The upper half of a float. Finite values saturate at 0x7F7F; Inf and NaN stay what they are.
struct Bf16 {
  static constexpr int kBits = 16;
  static constexpr bool kAffine = false;
  MPFA_HD static constexpr Code encode(float v) {
    const std::uint32_t u = float_bits(v), sign = u >> 31 << 15, abs = u & kFloatAbs;
    if (abs >= kFloatInf) return {sign | (abs == kFloatInf ? 0x7F80U : 0x7FC0U), false};
    const std::uint32_t code = round_shift(abs, 16);
    return code > 0x7F7FU ? Code{sign | 0x7F7FU, true} : Code{sign | code, false};
  }
  MPFA_HD static constexpr float decode(std::uint32_t code) { return bits_float(code << 16); }
};

struct F32 {
  static constexpr int kBits = 32;
  static constexpr bool kAffine = false;
  MPFA_HD static constexpr Code encode(float v) { return {float_bits(v), false}; }
  MPFA_HD static constexpr float decode(std::uint32_t code) { return bits_float(code); }
};

/// Nearest integer, ties to even, of |v| <= 2^22.
MPFA_HD constexpr int round_to_int(float v) {
  constexpr float magic = 12582912.0F;  // 1.5 * 2^23: the sum has no fraction bits left
  return static_cast<int>((v + magic) - magic);
}

/// Integers kLow..kHigh in kBits bits, two's complement. NaN must not reach the encoder.
template <int kBitCount, int kLow, int kHigh>
struct Integer {
  static constexpr int kBits = kBitCount;
  static constexpr bool kAffine = kLow == 0;
  MPFA_HD static constexpr Code encode(float v) {
    const float limited = v < kLow - 1.0F ? kLow - 1.0F : v > kHigh + 1.0F ? kHigh + 1.0F : v;
    const int n = round_to_int(limited);
    const int held = n < kLow ? kLow : n > kHigh ? kHigh : n;
    return {static_cast<std::uint32_t>(held) & ((1U << kBits) - 1U), n != held};
  }
  MPFA_HD static constexpr float decode(std::uint32_t code) {
    const int n = static_cast<int>(code & ((1U << kBits) - 1U));
    return static_cast<float>(kLow < 0 && n > kHigh ? n - (1 << kBits) : n);
  }
};
using Int8 = Integer<8, -127, 127>;
using Int4 = Integer<4, -7, 7>;
using Uint4 = Integer<4, 0, 15>;

/// The 16-level Lloyd-Max quantiser of a unit normal (Max, "Quantizing for minimum distortion", 1960): mean squared
/// error 0.009501. Codes rise with the value; a value halfway between two levels takes the one nearer to 0.
struct Lloyd4 {
  static constexpr int kBits = 4;
  static constexpr bool kAffine = true;  // minimum 0: a zero token reads as +0
  MPFA_HD static constexpr float decode(std::uint32_t code) {
    constexpr float level[8] = {0.1283950299F, 0.3880482995F, 0.6567591185F, 0.9423404565F,
                                1.2562311973F, 1.6180463860F, 2.0690172265F, 2.7325895710F};
    const std::uint32_t c = code & 15U;
    return c >= 8U ? level[c - 8U] : -level[7U - c];
  }
  MPFA_HD static constexpr Code encode(float v) {
    constexpr float halfway[7] = {0.2582216647F, 0.5224037090F, 0.7995497875F, 1.0992858269F,
                                  1.4371387917F, 1.8435318063F, 2.4008033988F};
    const float abs = bits_float(float_bits(v) & kFloatAbs);
    std::uint32_t step = 0;
    for (const float limit : halfway) step += abs > limit ? 1U : 0U;
    return {v < 0.0F ? 7U - step : 8U + step, false};
  }
};

/// Power-of-two scale: 2^(code - 127), code 0 is 2^-127, 255 is NaN; zero does not exist.
struct E8M0 {
  MPFA_HD static constexpr float decode(std::uint32_t code) {
    return code == 255U ? bits_float(kFloatNan) : power_of_two(static_cast<int>(code) - 127);
  }
  /// Code of 2^e, e limited to what the byte holds.
  MPFA_HD static constexpr std::uint32_t encode_exponent(int e) {
    return static_cast<std::uint32_t>((e < -127 ? -127 : e > 127 ? 127 : e) + 127);
  }
};

struct Binary {
  int exponent;
  std::uint32_t mantissa;  // 23 bits
};
/// v = (1 + mantissa / 2^23) * 2^exponent for finite v > 0, subnormal values included.
MPFA_HD constexpr Binary split_binary(float v) {
  const bool small = float_bits(v) < 0x00800000U;
  const std::uint32_t u = float_bits(small ? v * power_of_two(64) : v);
  return {static_cast<int>(u >> 23) - 127 - (small ? 64 : 0), u & 0x7FFFFFU};
}
MPFA_HD constexpr int floor_log2(float v) {
  return split_binary(v).exponent;
}
/// ceil(log2(v / limit)) without rounding error, v and limit finite and positive.
MPFA_HD constexpr int ceil_log2_ratio(float v, float limit) {
  const Binary a = split_binary(v), b = split_binary(limit);
  return a.exponent - b.exponent + (a.mantissa > b.mantissa ? 1 : 0);
}

}  // namespace mpfa::formats
