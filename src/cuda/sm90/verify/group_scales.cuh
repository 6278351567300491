// Scales of groups, f32 or f16. Of K they multiply the scores of a chunk of 32 channels, as f32; of V the codes, as f16
// relative to an exponent that the warp follows for its channels.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/decode/scale_row.cuh"
#include "cuda/sm90/verify/tile.cuh"

namespace mpfa::sm90 {

template <class Config>
struct Lane;

// V's largest scale so far becomes an f16 of [2^10, 2^11); those up to 2^15 need no new exponent.
inline constexpr std::uint32_t kGroupLift = 10, kMostGroupExponent = 245;  // with it NaN and Inf stay such
inline constexpr float kMostGroupScale = 0x1p15F;
// Scales of tokens: their product with P, which is below 2, or with its codes up to 448, has to be an f16 too.
template <class Config>
inline constexpr float kTokenDrop = Config::kRoundsP ? 0x1p-8F : 0x1p-4F;

/// Of one operand, where a chunk of 32 channels has its scale in the row of a key, as it is stored.
template <Operand kOperand>
struct GroupRow {
  static constexpr bool kIntegers = kOperand == Operand::int4;

  __device__ __forceinline__ static std::uint32_t offset(const DecodePages& pages, std::uint32_t chunk) {
    const std::uint32_t group = chunk >> pages.scale_shift;
    if constexpr (kIntegers) return pages.row_scale != 0 ? 0U : group * 2;
    return group % 4 * 4 + group / 4 * (16 * kVerifyKeys);
  }
  /// At a shared address, of int4 as f16 or f32.
  __device__ __forceinline__ static float load(const DecodePages& pages, std::uint32_t at) {
    if (kIntegers && pages.row_scale == 0) {
      std::uint16_t half;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(at));
      return __half2float(__ushort_as_half(half));
    }
    std::uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
    return f32_scale(word);
  }
};

/// V's scales are multiplied by the float whose bits are `bias`: whether one is too large for it.
__device__ __forceinline__ bool exceeds_followed(float scale, std::uint32_t bias) {
  return scale * __uint_as_float(bias) > kMostGroupScale;
}
/// Makes that fit the warp's `largest`; true if the sums
/// so far have to be multiplied by `keep`.
__device__ __forceinline__ bool follow_groups(float largest, std::uint32_t& bias, float& keep) {
  if (!__builtin_expect(__any_sync(0xFFFFFFFFU, exceeds_followed(largest, bias)), 0)) return false;
  const std::uint32_t bits = __float_as_uint(largest);
  const std::uint32_t top = __reduce_max_sync(0xFFFFFFFFU, bits < 0x7F800000U ? bits : 0U);
  if (__uint_as_float(top) * __uint_as_float(bias) <= kMostGroupScale) return false;
  const std::uint32_t raised = 254U + kGroupLift - min(top >> 23, kMostGroupExponent);
  const std::int32_t field = 127 + static_cast<std::int32_t>(raised) - static_cast<std::int32_t>(bias >> 23);
  bias = raised << 23;
  keep = __uint_as_float(static_cast<std::uint32_t>(max(field, 0)) << 23);
  return true;
}
inline constexpr std::uint32_t kNoGroups = 253U << 23;  // no scale seen yet

/// K's scales of the thread's keys g and g + 8 and two chunks, by way of the warp's scratch memory.
template <class Config>
struct SumScales {
  static constexpr int kOfLane = Config::kChunks / 2;  // scales of a key of the warp that a lane puts there
  // They lie as [half of 8 chunks][key][chunk].
  static constexpr std::uint32_t kKeyBytes = Config::kChunks < 8 ? Config::kChunks * 4 : 16,
                                 kHalfBytes = 16 * kKeyBytes;
  float key[2][2];  // [key][chunk]

  /// Of which key and from which chunk on: a single one goes where the lane puts V's scales, 8 words for every t.
  __device__ __forceinline__ static std::uint32_t key_of_lane() {
    const std::uint32_t lane = threadIdx.x % 32;
    return kOfLane == 1 ? lane % 4 * 4 + lane / 8 : lane / 2;
  }
  __device__ __forceinline__ static std::uint32_t first_of_lane() {
    return kOfLane == 1 ? threadIdx.x / 4 % 2 : threadIdx.x % 2 * kOfLane;
  }
  /// Where that is, and where the lane finds those of key g.
  __device__ __forceinline__ static std::uint32_t put_place() {
    return first_of_lane() / 4 * kHalfBytes + key_of_lane() * kKeyBytes + first_of_lane() % 4 * 4;
  }
  __device__ __forceinline__ static std::uint32_t take_place() { return threadIdx.x % 32 / 4 * kKeyBytes; }

  __device__ __forceinline__ static void put(const DecodePages& pages, std::uint32_t stage, const Lane<Config>& own) {
    using Row = GroupRow<Config::kKey>;
    float x[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      x[i] = Row::load(pages, stage + own.key_scales + Row::offset(pages, i));
    }
    if constexpr (kOfLane == 1) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(own.put_key_scales), "f"(x[0]) : "memory");
    } else if constexpr (kOfLane == 2) {
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(own.put_key_scales), "f"(x[0]), "f"(x[1]) : "memory");
    } else {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(own.put_key_scales), "f"(x[0]), "f"(x[1]),
                   "f"(x[2]), "f"(x[3])
                   : "memory");
    }
  }
  /// Of chunks 2 pair and 2 pair + 1, after __syncwarp.
  __device__ __forceinline__ void take(const Lane<Config>& own, int pair) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      std::uint32_t two[2];
      load_words(two, own.take_key_scales + k * 8 * kKeyBytes + pair / 2 * kHalfBytes + pair % 2 * 8);
      key[k][0] = __uint_as_float(two[0]), key[k][1] = __uint_as_float(two[1]);
    }
  }
};

}  // namespace mpfa::sm90
