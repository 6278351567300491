// Block scales of a tile: every lane turns those of one key into what the MMA loops read from shared memory.
//   K  mxfp4: f32 [key][chunk];  nvfp4: f16 pairs of two equal halves [key][half of the chunk][chunk]
//   V  f16 [block][value_scale_place(key)]
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/fp4/tile.cuh"

namespace mpfa::sm90 {

// mxfp4: V's scales are f16 powers of two relative to an exponent that the warp follows:
// 2^(code - exponent + kScaleLift), at most 2^11, so that P up to 2^4 times a scale stays an f16. Codes more than
// kScaleLift + 14 below the exponent count as zero.
inline constexpr int kScaleLift = 6;
inline constexpr int kMostAbove = 5;       // codes above the exponent that need no new one
inline constexpr int kMostExponent = 245;  // so that code 255, NaN, becomes an f16 Inf
inline constexpr int kNoExponent = -1000;  // no tile seen yet

/// What is added to a pair of codes to make exponent fields of f16.
__device__ __forceinline__ std::uint32_t exponent_bias(std::int32_t exponent) {
  return static_cast<std::uint16_t>(15 + kScaleLift - exponent) * 0x00010001U;
}

/// The low half of a pair to `low`, the high half to `high`.
__device__ __forceinline__ void store_halves(std::uint32_t low, std::uint32_t high, std::uint32_t pair) {
  asm volatile("{.reg .b16 l, h; mov.b32 {l, h}, %2; st.shared.b16 [%0], l; st.shared.b16 [%1], h;}" ::"r"(low),
               "r"(high), "r"(pair)
               : "memory");
}

template <int kWords>
__device__ __forceinline__ void store_words(std::uint32_t to, const std::uint32_t (&w)[kWords]) {
  if constexpr (kWords == 2) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 4), "r"(w[i]), "r"(w[i + 1]),
                   "r"(w[i + 2]), "r"(w[i + 3])
                   : "memory");
    }
  }
}

template <class Config>
__device__ __forceinline__ void prepare_key_scales(const ScaleRow<Config>& row, std::uint32_t scales) {
  constexpr int kChunks = Config::kChunks;
  const std::uint32_t place = threadIdx.x % 32;
  if constexpr (Config::kMx) {
    std::uint32_t f[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) f[c] = __float_as_uint(e8m0_scale(row.w[c / 4], c % 4));
    store_words(scales + place * kChunks * 4, f);
  } else {
    std::uint32_t f[2 * kChunks];  // [half][chunk]
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::uint32_t pair = e4m3_pair(c % 2 == 0 ? row.w[c / 2] : row.w[c / 2] >> 16);
      f[c] = __byte_perm(pair, 0, 0x1010);
      f[kChunks + c] = __byte_perm(pair, 0, 0x3232);
    }
    store_words(scales + place * kChunks * 8, f);
  }
}

template <class Config>
__device__ __forceinline__ std::int32_t state_exponent(const State<Config>& state) {
  return 15 + kScaleLift - static_cast<std::int16_t>(state.bias & 0xFFFFU);
}

/// Makes V's exponent the largest code of the tile when one does not fit, and scales what was summed to it.
template <class Config>
__device__ __forceinline__ std::int32_t raise_exponent(const ScaleRow<Config>& row, std::int32_t exponent) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int c = 0; c < Config::kChunks; ++c) {
    const std::uint32_t code = (row.w[c / 4] >> (8 * (c % 4))) & 0xFFU;
    if (code != 255U) largest = max(largest, code);
  }
  largest = __reduce_max_sync(0xFFFFFFFFU, largest);
  const auto top = static_cast<std::int32_t>(largest);
  return top > exponent + kMostAbove ? min(top, kMostExponent) : exponent;
}

template <class Config>
__device__ __forceinline__ void prepare_value_scales(const ScaleRow<Config>& row, std::uint32_t scales,
                                                     State<Config>& state) {
  constexpr int kChunks = Config::kChunks;
  const std::uint32_t to = scales + value_scale_place(threadIdx.x % 32) * 2;
  constexpr std::uint32_t kBlockBytes = kTileKeys * 2;
  if constexpr (Config::kMx) {
    constexpr int kPairs = kChunks / 2;
    std::uint32_t pair[kPairs];  // codes (0, 2), (1, 3) of every word; D = 64: (0, 1)
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pair[i] = kChunks == 2 ? __byte_perm(row.w[0], 0, 0x4140)
                             : (i % 2 == 0 ? row.w[i / 2] : row.w[i / 2] >> 8) & 0x00FF00FFU;
    }
    std::uint32_t field[kPairs];
    std::uint32_t too_large = 0;
    const auto limit = [&] {
      too_large = 0;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        field[i] = __viaddmin_s16x2_relu(pair[i], state.bias, 0x001F001FU);
        too_large |= field[i] + (32U - (15U + kScaleLift + kMostAbove + 1U)) * 0x00010001U;
      }
      too_large &= 0x00200020U;
    };
    limit();
    if (__any_sync(0xFFFFFFFFU, too_large != 0U)) {
      const std::int32_t exponent = state_exponent(state), raised = raise_exponent(row, exponent);
      const float keep = ptx::exp2_fast(static_cast<float>(exponent - raised));
      state.bias = exponent_bias(raised);
#pragma unroll
      for (int i = 0; i < Config::kRowTiles * kChunks * 8; ++i) {
        state.out[i / (kChunks * 8)][i / 8 % kChunks][i / 4 % 2][i % 4] *= keep;
      }
      limit();
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int low = kChunks == 2 ? 0 : i / 2 * 4 + i % 2, high = low + (kChunks == 2 ? 1 : 2);
      store_halves(to + low * kBlockBytes, to + high * kBlockBytes, field[i] << 10);
    }
  } else {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::uint32_t pair = e4m3_pair(c % 2 == 0 ? row.w[c / 2] : row.w[c / 2] >> 16);
      store_halves(to + 2 * c * kBlockBytes, to + (2 * c + 1) * kBlockBytes, pair);
    }
  }
}

/// What `State::out` has to be multiplied by.
template <class Config>
__device__ __forceinline__ float value_unit(const State<Config>& state) {
  if constexpr (!Config::kMx) return kCodeUnit;
  const std::int32_t exponent = state_exponent(state);
  return exponent == kNoExponent ? 0.0F : exp2f(static_cast<float>(exponent - 127 - kScaleLift + 14));
}

}  // namespace mpfa::sm90
