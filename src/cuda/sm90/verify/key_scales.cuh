// Block scales of K of a tile: e4m3 as they are, e8m0 relative to an exponent that the warp follows for its keys.
#pragma once

#include <cstdint>

#include "cuda/sm90/verify/scales.cuh"

namespace mpfa::sm90 {

/// Scales of the words of a thread's keys g and g + 8.
template <class Config>
struct KeyScales {
  static constexpr bool kFollows = Config::kKeyScale == ScaleKind::e8m0;
  static constexpr bool kScale = true;
  /// Words of a block of channels, and blocks of the thread's share of a row.
  static constexpr int kWords = kFollows ? 4 : 2, kCount = Config::kChunks > kWords ? Config::kChunks / kWords : 1;
  /// Pairs of scales are those of both keys of a block, not of two blocks of a key.
  static constexpr bool kOfBlocks = kFollows || kCount == 1;
  std::uint32_t pair[2][kCount];  // f16 twice

  /// Of the thread's channels.
  __device__ __forceinline__ void load(std::uint32_t at, const KeyScalePlace& own) {
    std::uint32_t w[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t from = at + k * 8 * Config::kKeyScaleBytes;
      if constexpr (kCount == (kFollows ? 1 : 4)) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[k]) : "r"(from));
      } else {
        w[k] = load_part<kCount>(from);
      }
    }
    if constexpr (kFollows && kCount == 1) {
      codes_[0] = __byte_perm(w[0], w[1], own.key_select) & 0x00FF00FFU;
    } else if constexpr (kFollows) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) codes_[i] = code_pair(w[0], w[1], i);
    } else if constexpr (kOfBlocks) {
      halves_[0] = e4m3_pair(w[0] | w[1] << 8);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) halves_[i] = e4m3_pair(w[2 * i / kCount] >> i % (kCount / 2) * 16);
    }
  }
  /// Key g or g + 8 is one that no row sees, whose scales must not be followed.
  __device__ __forceinline__ void hide(int k) {
    if constexpr (kFollows) {
#pragma unroll
      for (std::uint32_t& codes : codes_) {
        codes = k == 0 ? (codes & 0xFFFF0000U) | kHidden : (codes & 0xFFFFU) | kHidden << 16;
      }
    }
  }
  /// Zero for key g or g + 8.
  __device__ __forceinline__ void drop(int k) {
    static_assert(kOfBlocks == kFollows && kCount == (kFollows ? 1 : 2));
    hide(k);
    if constexpr (!kFollows) halves_[k] = 0;
  }
  /// Zeros for its NaN; returns which of two blocks of 16 channels have one.
  __device__ __forceinline__ std::uint32_t drop_nan(int k) {
    static_assert(kOfBlocks == kFollows && kCount == (kFollows ? 1 : 2));
    if constexpr (kFollows) {
      if ((codes_[0] >> 16 * k & 0xFFFFU) != 0xFFU) return 0U;
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
    if constexpr (kFollows) return convert_codes(codes_, halves_, bias);
    return false;
  }
  /// When one of the warp's did not fit.
  __device__ __forceinline__ void follow(std::uint32_t& bias) {
    follow_codes(codes_, halves_, bias);
  }
  __device__ __forceinline__ void spread() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t low = half2_bits(__low2half2(bits_half2(halves_[i]))),
                          high = half2_bits(__high2half2(bits_half2(halves_[i])));
      if constexpr (kOfBlocks) {
        pair[0][i] = low, pair[1][i] = high;
      } else {
        pair[2 * i / kCount][2 * i % kCount] = low, pair[2 * i / kCount][2 * i % kCount + 1] = high;
      }
    }
  }
  /// Of word m.
  __device__ __forceinline__ std::uint32_t operator()(int k, int m) const {
    return pair[k][m / kWords];
  }

 private:
  std::uint32_t codes_[kCount], halves_[kCount];
};

}  // namespace mpfa::sm90
