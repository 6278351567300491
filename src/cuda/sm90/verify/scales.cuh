// Block scales of a tile. They multiply the expanded codes, as f16: e4m3 exactly; e8m0 relative to exponents that the
// warp follows, of its keys of K and of its channels of V.
#pragma once

#include <cstdint>

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
  std::uint32_t key_select;  // e8m0, a byte for a key: bytes of two words of scales
};

/// Chunk of 32 channels, and half of it, that is part `h` of the warp's channels of V: 16, see value_channel.
template <class Config>
struct ValuePart {
  std::uint32_t chunk, half;
  __device__ __forceinline__ explicit ValuePart(std::uint32_t h = 0) {
    const std::uint32_t part = threadIdx.x / 32 % 4 * Config::kHalves + h;
    chunk = part / 2, half = part % 2;
  }
};

/// Where the scales of a key of a tile begin in the word that is copied for them: they may be two bytes.
template <class Config>
__device__ __forceinline__ std::uint32_t scale_begin(const DecodePages& pages, std::int32_t head, std::uint32_t key) {
  if constexpr (!Config::kPartWords) return 0;
  const std::uint8_t* row = pages.scales + head * pages.scale_head + static_cast<std::int64_t>(key) * pages.scale_row;
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(row) & 2U);
}

/// Offsets of a lane in a stage and in its warp's scratch memory. Computed once: the compiler would do it in every
/// tile.
template <class Config>
struct Lane : KeyScalePlace {
  std::uint32_t keys, values, value_scales;       // of the stage
  std::uint32_t value_select;                     // as key_select
  std::uint32_t value_bytes;                      // with 64 channels, see ValueSteps
  std::uint32_t put_scales, take_scales;          // of shared memory
  std::uint32_t put_key_scales, take_key_scales;  // groups of K

  __device__ __forceinline__ void enter(const DecodeParams& p, std::int32_t head, std::uint32_t scratch) {
    const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    constexpr bool kKeysOfFour = Config::kKeyScale == ScaleKind::e4m3,
                   kTwoHalves = Config::kValueScale == ScaleKind::e4m3;
    // Bytes of rows of scales that are the thread's, or the warp's: e8m0 is selected from words up to 128 channels.
    constexpr std::uint32_t kChunks = Config::kChunks, kOfThread = kKeysOfFour ? kChunks / 2 : kChunks / 8 * 2,
                            kOfChunk = kTwoHalves                               ? 2
                                       : Config::kValueScale == ScaleKind::e8m0 ? Config::kWarpChunks - 1
                                                                                : 0;
    const std::uint32_t chunk = ValuePart<Config>().chunk;
    keys = 16 * warp * Config::kKeyRowBytes + code_offset<Config::kKeyRowBytes>(g, t * kChunks / 4) +
           (kChunks == 2 ? t % 2 * 8 : 0);
    key_scales = Config::kKeyScalesAt + (16 * warp + g) * Config::kKeyScaleStep + kOfThread * t;
    values = Config::kValuesAt + code_offset<Config::kValueRowBytes>(lane, chunk);
    value_scales =
        Config::kValueScalesAt + value_scale_row<Config>(2 * lane) * Config::kValueScaleStep + kOfChunk * chunk;
    const auto begin = [&](const DecodePages& pages, std::uint32_t key) {
      return scale_begin<Config>(pages, head, key % kVerifyPage);
    };
    key_select = (t * kChunks / 4) * 0x101 + (begin(p.k, g) | (begin(p.k, g + 8) + 4) << 8);
    value_select = chunk * 0x101 + (begin(p.v, 2 * lane) | (begin(p.v, 2 * lane + 1) + 4) << 8);
    value_bytes = 0x6240 + 0x1111 * ValuePart<Config>().half;
    put_scales = scratch + t * 32 + g * 4;
    take_scales = scratch + t * 32 + (kTwoHalves ? g / 4 * 128 : 0);
    ptx::keep_in_register(put_scales);
    if constexpr (kScalesSums<Config>) {
      // Keys by matrix loads.
      using Row = GroupRow<Config::kKey>;
      using Sums = SumScales<Config>;
      const std::uint32_t key = Sums::key_of_lane(), first = Sums::first_of_lane();
      keys = 16 * warp * Config::kKeyRowBytes + matrix_row<Config::kKeyRowBytes>();
      key_scales =
          Config::kKeyScalesAt + (16 * warp + key) * Config::kKeyScaleStep + Row::offset(p.k, first) + begin(p.k, key);
      put_key_scales = (kChunks == 2 ? put_scales : scratch + Sums::put_place()) + Config::kValueScratchBytes;
      take_key_scales = scratch + Config::kValueScratchBytes + Sums::take_place();
      if constexpr (kChunks < 8) ptx::keep_in_register(take_key_scales);
      if constexpr (kChunks == 4) ptx::keep_in_register(put_key_scales);
    }
    if constexpr (Config::kValueScale == ScaleKind::group) {
      value_scales += GroupRow<Config::kValue>::offset(p.v, chunk) + begin(p.v, 2 * lane);
    }
    for (std::uint32_t* x : {&keys, &key_scales, &values, &value_scales, &take_scales}) ptx::keep_in_register(*x);
    if constexpr (Config::kKeyScale == ScaleKind::e8m0 && kChunks <= 4) ptx::keep_in_register(key_select);
    if constexpr (Config::kValueScale == ScaleKind::e8m0 && kChunks <= 4) ptx::keep_in_register(value_select);
    if constexpr (kChunks == 2) ptx::keep_in_register(value_bytes);
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
template <int kCount>
__device__ __forceinline__ void follow_codes(const std::uint32_t (&codes)[kCount], std::uint32_t (&scales)[kCount],
                                             std::uint32_t& bias) {
  std::uint32_t code[2 * kCount], largest = 0;
#pragma unroll
  for (int i = 0; i < 2 * kCount; ++i) {
    code[i] = codes[i / 2] >> 16 * (i % 2) & 0xFFFFU;
    if (code[i] < 0xFFU) largest = max(largest, code[i]);
  }
  const auto top = static_cast<std::int32_t>(__reduce_max_sync(0xFFFFFFFFU, largest));
  const std::int32_t before = followed_exponent(bias);
  const std::int32_t after = top > before + 30 - kFollowedField ? min(top, kLargestFollowed) : before;
  bias = followed_bias(after);
#pragma unroll
  for (int i = 0; i < 2 * kCount; ++i) {
    const auto above = static_cast<std::int32_t>(static_cast<std::int16_t>(code[i])) + kFollowedField - after;
    const std::uint32_t bits = code[i] == 0xFFU ? kHalfNan : static_cast<std::uint32_t>(max(above, 0)) << 10;
    scales[i / 2] = i % 2 == 0 ? bits : scales[i / 2] | bits << 16;
  }
}
/// Pairs of codes as f16 relative to the exponent; true if one is too large for it.
template <int kCount>
__device__ __forceinline__ bool convert_codes(const std::uint32_t (&codes)[kCount], std::uint32_t (&scales)[kCount],
                                              std::uint32_t bias) {
  std::uint32_t beyond = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t field = __viaddmin_s16x2_relu(codes[i], bias, 31U * 0x10001U);
    scales[i] = field << 10;
    beyond |= field + 0x10001U;
  }
  return (beyond & 0x200020U) != 0;
}
/// e8m0 of two keys, bytes `at` of words that have no more than two bytes, as halves.
__device__ __forceinline__ std::uint32_t code_pair(std::uint32_t first, std::uint32_t second, std::uint32_t at) {
  return __byte_perm(first, second, 0x3430 + at * 0x0101);
}
/// A byte or two of shared memory.
template <int kBytes>
__device__ __forceinline__ std::uint32_t load_part(std::uint32_t from) {
  std::uint16_t part;
  if constexpr (kBytes == 1) {
    asm volatile("ld.shared.u8 %0, [%1];" : "=h"(part) : "r"(from));
  } else {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(part) : "r"(from));
  }
  return part;
}

}  // namespace mpfa::sm90
