// Block scales of a tile. They multiply the expanded codes, as f16: e4m3 exactly; e8m0 relative to exponents that the
// warp follows, of its keys of K and of its channels of V.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/decode/codes.cuh"
#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/verify/group_scales.cuh"
#include "cuda/sm90/verify/tile.cuh"

namespace mpfa::sm90 {

// An e8m0 scale of the exponent is an f16 with field 25, so that codes up to 5 above it need no new one; 2^20 below it
// blocks lose digits. With the largest exponent code 254 still fits.
inline constexpr std::int32_t kFollowedField = 25, kLargestFollowed = 249, kNoneFollowed = -1000;
inline constexpr std::uint32_t kHalfNan = 0x7E00U, kHidden = 0xF000U;  // hidden: field 0 whatever it is relative to

/// Whether K's scales multiply the sums of chunks of 32 channels.
template <class Config>
inline constexpr bool kScalesSums = Config::kKeyScale == ScaleKind::group;

/// What turns codes times scales of K into values, apart from the exponent that is followed.
template <class Config>
inline constexpr float kVerifyKeyUnit = Config::kKeyScale == ScaleKind::e8m0 ? 1.0F : Config::kKeyInfo.unit;

/// Where a thread finds K's scales of two keys.
struct KeyScalePlace {
  std::uint32_t key_scales;  // of the first, in the stage
  std::uint32_t key_select;  // e8m0: bytes of two words of scales
};

/// Offsets of a lane in a stage and in its warp's scratch memory. Computed once: the compiler would do it in every
/// tile.
template <class Config>
struct Lane : KeyScalePlace {
  std::uint32_t keys, values, value_scales;                        // of the stage
  std::uint32_t value_select;                                      // as key_select
  std::uint32_t put_scales, take_scales;                           // of shared memory
  std::uint32_t next_key_scales, put_key_scales, take_key_scales;  // groups of K

  __device__ __forceinline__ void enter(const DecodeParams& p, std::uint32_t scratch) {
    const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    constexpr bool kKeysOfFour = Config::kKeyScale == ScaleKind::e4m3,
                   kTwoHalves = Config::kValueScale == ScaleKind::e4m3;
    keys = 16 * warp * Config::kKeyRowBytes + code_offset<Config::kKeyRowBytes>(g, t);
    key_scales = Config::kKeyScalesAt + (16 * warp + g) * Config::kKeyScaleBytes + (kKeysOfFour ? 2 * t : 0);
    values = Config::kValuesAt + code_offset<Config::kValueRowBytes>(lane, warp);
    value_scales = Config::kValueScalesAt + 2 * lane * Config::kValueScaleBytes + (kTwoHalves ? 2 * warp : 0);
    key_select = t | (t + 4) << 8;
    value_select = warp | (warp + 4) << 8;
    put_scales = scratch + t * 32 + g * 4;
    take_scales = scratch + t * 32 + (kTwoHalves ? g / 4 * 128 : 0);
    if constexpr (kScalesSums<Config>) {
      // Keys by matrix loads; a lane has two chunks' scales of key lane / 2.
      using Row = GroupRow<Config::kKey>;
      const std::uint32_t key = 16 * warp + lane / 2, chunk = lane % 2 * 2;
      keys = 16 * warp * Config::kKeyRowBytes + matrix_row<Config::kKeyRowBytes>();
      key_scales = Config::kKeyScalesAt + key * Config::kKeyScaleBytes + Row::offset(p.k, chunk);
      next_key_scales = key_scales + Row::offset(p.k, chunk + 1) - Row::offset(p.k, chunk);
      put_key_scales = scratch + Config::kValueScratchBytes + lane * 8;
      take_key_scales = scratch + Config::kValueScratchBytes + g * 16;
      for (std::uint32_t* x : {&next_key_scales, &put_key_scales, &take_key_scales}) ptx::keep_in_register(*x);
    }
    if constexpr (Config::kValueScale == ScaleKind::group) value_scales += GroupRow<Config::kValue>::offset(p.v, warp);
    for (std::uint32_t* x : {&keys, &key_scales, &values, &value_scales, &put_scales, &take_scales}) {
      ptx::keep_in_register(*x);
    }
    if constexpr (Config::kKeyScale == ScaleKind::e8m0) ptx::keep_in_register(key_select);
    if constexpr (Config::kValueScale == ScaleKind::e8m0) ptx::keep_in_register(value_select);
  }
};

__device__ __forceinline__ std::uint32_t followed_bias(std::int32_t exponent) {
  return static_cast<std::uint16_t>(kFollowedField - exponent) * 0x10001U;
}
__device__ __forceinline__ std::int32_t followed_exponent(std::uint32_t bias) {
  return kFollowedField - static_cast<std::int16_t>(bias & 0xFFFFU);
}
/// What codes e2m1 times scales relative to the exponent have to be multiplied by.
__device__ __forceinline__ float followed_unit(std::uint32_t bias) {
  const std::int32_t exponent = followed_exponent(bias);
  return exponent == kNoneFollowed ? 0.0F : exp2f(static_cast<float>(exponent - 127 + 29 - kFollowedField));
}

/// A code does not fit: makes the exponent the largest code that is not NaN, unless those fit.
__device__ __forceinline__ void follow_codes(std::uint32_t codes, std::uint32_t& scales, std::uint32_t& bias) {
  const std::uint32_t code[2] = {codes & 0xFFFFU, codes >> 16};
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (code[i] < 0xFFU) largest = max(largest, code[i]);
  }
  const auto top = static_cast<std::int32_t>(__reduce_max_sync(0xFFFFFFFFU, largest));
  const std::int32_t before = followed_exponent(bias);
  const std::int32_t after = top > before + 30 - kFollowedField ? min(top, kLargestFollowed) : before;
  bias = followed_bias(after);
  std::uint32_t bits[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto above = static_cast<std::int32_t>(static_cast<std::int16_t>(code[i])) + kFollowedField - after;
    bits[i] = code[i] == 0xFFU ? kHalfNan : static_cast<std::uint32_t>(max(above, 0)) << 10;
  }
  scales = bits[0] | bits[1] << 16;
}
/// Two codes as f16 relative to the exponent; true if one is too large for it.
__device__ __forceinline__ bool convert_codes(std::uint32_t codes, std::uint32_t& scales, std::uint32_t bias) {
  const std::uint32_t field = __viaddmin_s16x2_relu(codes, bias, 31U * 0x10001U);
  scales = field << 10;
  return ((field + 0x10001U) & 0x200020U) != 0;
}

/// Scales of the words of a thread's keys g and g + 8.
template <class Config>
struct KeyScales {
  static constexpr bool kFollows = Config::kKeyScale == ScaleKind::e8m0;
  static constexpr bool kScale = true;
  static constexpr int kCount = kFollows ? 1 : 2;
  std::uint32_t pair[2][kCount];  // f16 twice

  /// Of the thread's channels.
  __device__ __forceinline__ void load(std::uint32_t at, const KeyScalePlace& own) {
    std::uint32_t w[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t from = at + k * 8 * Config::kKeyScaleBytes;
      if constexpr (kFollows) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[k]) : "r"(from));
      } else {
        std::uint16_t two;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(two) : "r"(from));
        w[k] = two;
      }
    }
    if constexpr (kFollows) {
      codes_ = __byte_perm(w[0], w[1], own.key_select) & 0x00FF00FFU;
    } else {
      halves_[0] = e4m3_pair(w[0]), halves_[1] = e4m3_pair(w[1]);
    }
  }
  /// Key g or g + 8 is one that no row sees, whose scales must not be followed.
  __device__ __forceinline__ void hide(int k) {
    if constexpr (kFollows) codes_ = k == 0 ? (codes_ & 0xFFFF0000U) | kHidden : (codes_ & 0xFFFFU) | kHidden << 16;
  }
  /// Zero for key g or g + 8.
  __device__ __forceinline__ void drop(int k) {
    hide(k);
    if constexpr (!kFollows) halves_[k] = 0;
  }
  /// Zeros for its NaN; returns which of two blocks of 16 channels have one.
  __device__ __forceinline__ std::uint32_t drop_nan(int k) {
    if constexpr (kFollows) {
      if ((codes_ >> 16 * k & 0xFFFFU) != 0xFFU) return 0U;
      hide(k);
      return 3U;
    } else {
      const std::uint32_t nan = __vcmpgtu2(halves_[k] & 0x7FFF7FFFU, 0x7C007C00U);
      halves_[k] &= ~nan;
      return (nan & 1U) | (nan >> 15 & 2U);
    }
  }
  /// True if one does not fit.
  __device__ __forceinline__ bool convert(std::uint32_t bias) {
    if constexpr (kFollows) return convert_codes(codes_, halves_[0], bias);
    return false;
  }
  /// When one of the warp's did not fit.
  __device__ __forceinline__ void follow(std::uint32_t& bias) {
    follow_codes(codes_, halves_[0], bias);
  }
  __device__ __forceinline__ void spread() {
    if constexpr (kFollows) {
      pair[0][0] = half2_bits(__low2half2(bits_half2(halves_[0])));
      pair[1][0] = half2_bits(__high2half2(bits_half2(halves_[0])));
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        pair[k][0] = half2_bits(__low2half2(bits_half2(halves_[k])));
        pair[k][1] = half2_bits(__high2half2(bits_half2(halves_[k])));
      }
    }
  }
  /// Of word m.
  __device__ __forceinline__ std::uint32_t operator()(int k, int m) const {
    return pair[k][kFollows ? 0 : m / 2];
  }

 private:
  std::uint32_t codes_, halves_[2];
};

/// Which of the lane's keys of V, 2 l and 2 l + 1 of the tile, every row may not see, and what NaN was found.
struct Unseen {
  bool hidden[2] = {false, false};
  std::uint32_t nan = 0;  // bit 2 i + b: block b of the warp's chunk, key i
};

/// Scales of the warp's 32 channels, of the thread's keys 8 j + 2 t and 8 j + 2 t + 1, as f16 pairs.
template <class Config>
struct ValueScales {
  static constexpr ScaleKind kKind = Config::kValueScale;
  using Codes = std::conditional_t<kKind == ScaleKind::group, float2, std::uint32_t>;
  std::uint32_t pair[8];

  /// The stored ones of the lane's keys 2 l and 2 l + 1: e8m0 in halves; e4m3 block 0 of both keys, block 1 of both;
  /// groups as floats.
  __device__ __forceinline__ static Codes codes(const DecodePages& pages, std::uint32_t at, const Lane<Config>& own) {
    if constexpr (kKind == ScaleKind::group) {
      using Row = GroupRow<Config::kValue>;
      return make_float2(Row::load(pages, at), Row::load(pages, at + Config::kValueScaleBytes));
    } else if constexpr (kKind == ScaleKind::e8m0) {
      std::uint32_t w[2];
      load_words(w, at);
      return __byte_perm(w[0], w[1], own.value_select) & 0x00FF00FFU;
    } else {
      std::uint16_t low, high;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(at));
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(at + Config::kValueScaleBytes));
      return __byte_perm(low, high, 0x5140);
    }
  }
  /// Zeros for hidden keys and for NaN, which are taken down.
  __device__ __forceinline__ static void hide(Codes& codes, Unseen& unseen) {
    if constexpr (kKind == ScaleKind::group) {
      float* const scale[2] = {&codes.x, &codes.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool nan = !isfinite(*scale[i]);
        if (nan) unseen.nan |= 1U << (2 * i);
        if (nan || unseen.hidden[i]) *scale[i] = 0.0F;
      }
    } else if constexpr (kKind == ScaleKind::e8m0) {
      std::uint32_t code[2] = {codes & 0xFFFFU, codes >> 16};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool nan = code[i] == 0xFFU;
        if (nan) unseen.nan |= 1U << (2 * i);
        if (nan || unseen.hidden[i]) code[i] = kHidden;
      }
      codes = code[0] | code[1] << 16;
    } else {
      const std::uint32_t nan = __vcmpeq4(codes & 0x7F7F7F7FU, 0x7F7F7F7FU);
      codes &= ~nan;
      if (unseen.hidden[0]) codes &= 0xFF00FF00U;
      if (unseen.hidden[1]) codes &= 0x00FF00FFU;
      unseen.nan = (nan & 1U) | (nan >> 16 & 1U) << 1 | (nan >> 8 & 1U) << 2 | (nan >> 24 & 1U) << 3;
    }
  }

  /// The lane's as f16; true if one does not fit.
  __device__ __forceinline__ static bool convert(Codes codes, std::uint32_t (&halves)[2], std::uint32_t bias) {
    if constexpr (kKind == ScaleKind::group) {
      const float lift = __uint_as_float(bias);
      halves[0] = half2_bits(__floats2half2_rn(codes.x * lift, codes.y * lift));
      return false;  // follow_groups was called before
    } else if constexpr (kKind == ScaleKind::e8m0) {
      return convert_codes(codes, halves[0], bias);
    } else {
      halves[0] = e4m3_pair(codes), halves[1] = e4m3_pair(codes >> 16);
      return false;
    }
  }
  /// e8m0, when one of the warp's did not fit; returns what the sums so far have to be multiplied by.
  __device__ __forceinline__ static float follow(Codes codes, std::uint32_t (&halves)[2], std::uint32_t& bias) {
    const std::int32_t before = followed_exponent(bias);
    if constexpr (kKind == ScaleKind::e8m0) follow_codes(codes, halves[0], bias);
    const std::int32_t after = followed_exponent(bias);
    return after != before ? exp2f(static_cast<float>(before - after)) : 1.0F;
  }
  /// To scratch memory.
  __device__ __forceinline__ static void put(const std::uint32_t (&halves)[2], const Lane<Config>& own) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(own.put_scales), "r"(halves[0]) : "memory");
    if constexpr (kKind == ScaleKind::e4m3) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(own.put_scales + 128), "r"(halves[1]) : "memory");
    }
  }
  /// Takes the thread's of 32 keys out of it, after __syncwarp.
  __device__ __forceinline__ void take(const Lane<Config>& own, int which) {
    const uint4 a = ptx::load_shared_words(own.take_scales + which * 16);
    pair[4 * which] = a.x, pair[4 * which + 1] = a.y, pair[4 * which + 2] = a.z, pair[4 * which + 3] = a.w;
  }
};

}  // namespace mpfa::sm90
