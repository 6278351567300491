// Scales of V of a tile: e4m3 as they are, the others relative to an exponent that the warp follows for its channels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/verify/scales.cuh"

namespace mpfa::sm90 {

/// Which of the lane's keys of V, 2 l and 2 l + 1 of the tile, every row may not see, and what NaN was found.
struct Unseen {
  bool hidden[2] = {false, false};
  std::uint32_t nan = 0;  // bit 4 c + 2 i + b: block b of the warp's chunk c, key i
};

/// Scales of the warp's channels, of the thread's keys 8 j + 2 t and 8 j + 2 t + 1, as f16 pairs.
template <class Config>
struct ValueScales {
  static constexpr ScaleKind kKind = Config::kValueScale;
  static constexpr int kChunks = Config::kWarpChunks, kBlocks = kKind == ScaleKind::e4m3 ? 2 : 1;  // of a chunk
  struct Words {
    std::uint32_t w[kChunks];
  };
  struct Floats {
    float key[2][kChunks];
  };
  using Codes = std::conditional_t<kKind == ScaleKind::group, Floats, Words>;
  std::uint32_t pair[kChunks][8];

  /// The stored ones of the lane's keys 2 l and 2 l + 1: e8m0 in halves; e4m3 block 0 of both keys, block 1 of both;
  /// groups as floats.
  __device__ __forceinline__ static Codes codes(const DecodePages& pages, std::uint32_t at, const Lane<Config>& own) {
    if constexpr (kKind == ScaleKind::group) {
      using Row = GroupRow<Config::kValue>;
      // In its word the second key's scale may be the other half.
      const std::uint32_t other = Config::kPartWords ? at ^ (pages.scale_row & 2U) : at;
      const std::uint32_t key[2] = {at, other + kVerifyKeys / 2 * Config::kValueScaleStep};
      Floats codes;
#pragma unroll
      for (int i = 0; i < 2 * kChunks; ++i) {
        codes.key[i % 2][i / 2] = Row::load(pages, key[i % 2] + Row::offset(pages, i / 2));
      }
      return codes;
    } else if constexpr (kKind == ScaleKind::e8m0 && kChunks == 1) {
      std::uint32_t w[2];
      load_words(w, at);
      return {__byte_perm(w[0], w[1], own.value_select) & 0x00FF00FFU};
    } else if constexpr (kKind == ScaleKind::e8m0) {
      const std::uint32_t low = load_part<kChunks>(at), high = load_part<kChunks>(at + Config::kValueScaleBytes);
      Words codes;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) codes.w[c] = code_pair(low, high, c);
      return codes;
    } else if constexpr (kChunks == 1) {
      const std::uint32_t low = load_part<2>(at), high = load_part<2>(at + Config::kValueScaleBytes);
      return {__byte_perm(low, high, 0x5140)};
    } else {
      std::uint32_t low[1], high[1];
      load_words(low, at);
      load_words(high, at + Config::kValueScaleBytes);
      return {__byte_perm(low[0], high[0], 0x5140), __byte_perm(low[0], high[0], 0x7362)};
    }
  }
  /// Zeros for hidden keys and for NaN, which are taken down.
  __device__ __forceinline__ static void hide(Codes& codes, Unseen& unseen) {
    if constexpr (kKind == ScaleKind::group) {
#pragma unroll
      for (int i = 0; i < 2 * kChunks; ++i) {
        float& scale = codes.key[i % 2][i / 2];
        const bool nan = !isfinite(scale);
        if (nan) unseen.nan |= 1U << (4 * (i / 2) + 2 * (i % 2));
        if (nan || unseen.hidden[i % 2]) scale = 0.0F;
      }
    } else {
      unseen.nan = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) unseen.nan |= hide(codes.w[c], unseen.hidden) << 4 * c;
    }
  }

  /// Of groups.
  __device__ __forceinline__ static float largest(const Codes& codes) {
    float all = fmaxf(fabsf(codes.key[0][0]), fabsf(codes.key[1][0]));
#pragma unroll
    for (int c = 1; c < kChunks; ++c) all = fmaxf(all, fmaxf(fabsf(codes.key[0][c]), fabsf(codes.key[1][c])));
    return all;
  }
  /// The lane's as f16; true if one does not fit.
  __device__ __forceinline__ static bool convert(const Codes& codes, std::uint32_t (&halves)[kChunks * kBlocks],
                                                 std::uint32_t bias) {
    if constexpr (kKind == ScaleKind::group) {
      const float lift = __uint_as_float(bias);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        halves[c] = half2_bits(__floats2half2_rn(codes.key[0][c] * lift, codes.key[1][c] * lift));
      }
      return false;  // follow_groups was called before
    } else if constexpr (kKind == ScaleKind::e8m0) {
      return convert_codes(codes.w, halves, bias);
    } else {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        halves[2 * c] = e4m3_pair(codes.w[c]), halves[2 * c + 1] = e4m3_pair(codes.w[c] >> 16);
      }
      return false;
    }
  }
  /// e8m0, when one of the warp's did not fit; returns what the sums so far have to be multiplied by.
  __device__ __forceinline__ static float follow(const Codes& codes, std::uint32_t (&halves)[kChunks * kBlocks],
                                                 std::uint32_t& bias) {
    const std::int32_t before = followed_exponent(bias);
    if constexpr (kKind == ScaleKind::e8m0) follow_codes(codes.w, halves, bias);
    const std::int32_t after = followed_exponent(bias);
    return after != before ? exp2f(static_cast<float>(before - after)) : 1.0F;
  }
  /// To scratch memory.
  __device__ __forceinline__ static void put(const std::uint32_t (&halves)[kChunks * kBlocks],
                                             const Lane<Config>& own) {
#pragma unroll
    for (int i = 0; i < kChunks * kBlocks; ++i) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(own.put_scales + i * 128), "r"(halves[i]) : "memory");
    }
  }
  /// Takes the thread's of 32 keys out of it, after __syncwarp.
  __device__ __forceinline__ void take(const Lane<Config>& own, int which) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 a = ptx::load_shared_words(own.take_scales + c * kBlocks * 128 + which * 16);
      pair[c][4 * which] = a.x, pair[c][4 * which + 1] = a.y;
      pair[c][4 * which + 2] = a.z, pair[c][4 * which + 3] = a.w;
    }
  }

 private:
  /// Of a chunk; returns its bits of Unseen.
  __device__ __forceinline__ static std::uint32_t hide(std::uint32_t& codes, const bool (&hidden)[2]) {
    std::uint32_t found = 0;
    if constexpr (kKind == ScaleKind::e8m0) {
      std::uint32_t code[2] = {codes & 0xFFFFU, codes >> 16};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool nan = code[i] == 0xFFU;
        if (nan) found |= 1U << (2 * i);
        if (nan || hidden[i]) code[i] = kHidden;
      }
      codes = code[0] | code[1] << 16;
    } else {
      const std::uint32_t nan = __vcmpeq4(codes & 0x7F7F7F7FU, 0x7F7F7F7FU);
      codes &= ~nan;
      if (hidden[0]) codes &= 0xFF00FF00U;
      if (hidden[1]) codes &= 0x00FF00FFU;
      found = (nan & 1U) | (nan >> 16 & 1U) << 1 | (nan >> 8 & 1U) << 2 | (nan >> 24 & 1U) << 3;
    }
    return found;
  }
};

}  // namespace mpfa::sm90
