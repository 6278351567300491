// Block scales of a tile: every lane turns those of one key into what the MMA loops read from shared memory.
//   K  row: f32 [row_scale_place(key)];  group, e8m0: f32 [key][chunk];
//      e4m3: f16 pairs of two equal halves [key][half of the chunk][chunk]
//   V  row: f32 [row_scale_place(key)];  others: f16 [block][value_scale_place(key)]
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/codes.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

// P times V's scale is an f16 (unless scales multiply the codes), so scales are relative to an exponent that the warp
// follows: scale * 2^(kScaleLift - exponent), at most 2^11, so that P up to 2^4 times it stays an f16. e8m0 scales more
// than 2^(kScaleLift + 14) below the exponent count as zero, others lose digits from there on.
inline constexpr int kScaleLift = 6;
inline constexpr int kMostAbove = 5;          // codes above the exponent that need no new one
inline constexpr int kMostExponent = 245;     // so that code 255, NaN, becomes an f16 Inf
inline constexpr int kNoExponent = -1000;     // no tile seen yet
inline constexpr float kMostScale = 0x1p11F;  // relative scales that need no new exponent

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

/// Place of a key's row scale: a thread reads those of its keys g, g + 8, g + 16 and g + 24 at once.
__device__ __forceinline__ std::uint32_t row_scale_place(std::uint32_t key) {
  return key % 8 * 4 + key / 8;
}
__device__ __forceinline__ void store_row_scale(std::uint32_t scales, float s) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(scales + row_scale_place(threadIdx.x % 32) * 4), "f"(s) : "memory");
}

template <class Config>
__device__ __forceinline__ void prepare_key_scales(const DecodeParams& p, const ScaleRow<Config::kKey, Config::kD>& row,
                                                   std::uint32_t scales) {
  constexpr int kChunks = Config::kChunks;
  constexpr ScaleKind kKind = Config::kKeyScale;
  const std::uint32_t place = threadIdx.x % 32;
  if constexpr (kKind == ScaleKind::row) {
    store_row_scale(scales, row.row());
  } else if constexpr (kKind == ScaleKind::group) {
    float f[kChunks];
    row.chunks(p.k, f);
    std::uint32_t bits[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) bits[c] = __float_as_uint(f[c]);
    store_words(scales + place * kChunks * 4, bits);
  } else if constexpr (kKind == ScaleKind::e8m0) {
    std::uint32_t f[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) f[c] = __float_as_uint(e8m0_scale(row.w[c / 4], c % 4));
    store_words(scales + place * kChunks * 4, f);
  } else if constexpr (kKind == ScaleKind::e4m3) {
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

/// Multiplies what was summed so far.
template <class Config>
__device__ __forceinline__ void scale_outputs(State<Config>& state, float keep) {
  constexpr int kChunks = Config::kChunks;
#pragma unroll
  for (int i = 0; i < Config::kRowTiles * kChunks * 8; ++i) {
    state.out[i / (kChunks * 8)][i / 8 % kChunks][i / 4 % 2][i % 4] *= keep;
  }
}

// State::bias of e8m0 is exponent_bias(exponent), that of f32 and f16 scales the bits of 2^(kScaleLift - exponent).

template <class Config>
__device__ __forceinline__ std::int32_t state_exponent(const State<Config>& state) {
  return 15 + kScaleLift - static_cast<std::int16_t>(state.bias & 0xFFFFU);
}

/// e8m0: makes V's exponent the largest code of the tile when one does not fit.
template <class Config>
__device__ __forceinline__ std::int32_t raise_exponent(const ScaleRow<Config::kValue, Config::kD>& row,
                                                       std::int32_t exponent) {
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

/// f32 and f16: makes V's exponent that of the largest finite scale of the tile when one does not fit. `largest` is of
/// the lane's key.
template <class Config>
__device__ __forceinline__ void follow_scales(float largest, State<Config>& state) {
  if (!__any_sync(0xFFFFFFFFU, largest * __uint_as_float(state.bias) > kMostScale)) return;
  const std::uint32_t bits = __float_as_uint(largest);
  const std::uint32_t top = __reduce_max_sync(0xFFFFFFFFU, bits < 0x7F800000U ? bits : 0U);
  if (__uint_as_float(top) * __uint_as_float(state.bias) <= kMostScale) return;
  const std::uint32_t raised = 254U + kScaleLift - min(top >> 23, static_cast<std::uint32_t>(kMostExponent));
  const std::int32_t keep = 127 + static_cast<std::int32_t>(raised) - static_cast<std::int32_t>(state.bias >> 23);
  state.bias = raised << 23;
  scale_outputs<Config>(state, __uint_as_float(static_cast<std::uint32_t>(max(keep, 0)) << 23));
}

template <class Config>
__device__ __forceinline__ void clear_exponent(State<Config>& state) {
  state.bias = Config::kValueScale == ScaleKind::e8m0 ? exponent_bias(kNoExponent) : 253U << 23;
}

/// The lane's value_scale_place; after a shuffle the compiler keeps it instead of computing it again for every tile.
__device__ __forceinline__ std::uint32_t kept_value_scale_place() {
  const std::uint32_t lane = threadIdx.x % 32;
  return __shfl_sync(0xFFFFFFFFU, value_scale_place(lane), lane);
}

/// to: address of the lane's key in the first block.
template <class Config>
__device__ __forceinline__ void prepare_value_scales(const DecodeParams& p,
                                                     const ScaleRow<Config::kValue, Config::kD>& row,
                                                     std::uint32_t scales, std::uint32_t to, State<Config>& state) {
  constexpr int kChunks = Config::kChunks;
  constexpr ScaleKind kKind = Config::kValueScale;
  constexpr std::uint32_t kBlockBytes = kTileKeys * 2;
  if constexpr (kKind == ScaleKind::row) {
    const float s = row.row();
    follow_scales<Config>(fabsf(s), state);
    store_row_scale(scales, s * __uint_as_float(state.bias) * p.p_unit);
  } else if constexpr (kKind == ScaleKind::group) {
    float f[kChunks];
    row.chunks(p.v, f);
    float largest = 0.0F;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) largest = fmaxf(largest, fabsf(f[c]));
    follow_scales<Config>(largest, state);
    const float lift = __uint_as_float(state.bias);
#pragma unroll
    for (int c = 0; c < kChunks; c += 2) {
      store_halves(to + c * kBlockBytes, to + (c + 1) * kBlockBytes,
                   half2_bits(__floats2half2_rn(f[c] * lift, f[c + 1] * lift)));
    }
  } else if constexpr (kKind == ScaleKind::e8m0) {
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
      const std::int32_t exponent = state_exponent(state), raised = raise_exponent<Config>(row, exponent);
      state.bias = exponent_bias(raised);
      scale_outputs<Config>(state, ptx::exp2_fast(static_cast<float>(exponent - raised)));
      limit();
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int low = kChunks == 2 ? 0 : i / 2 * 4 + i % 2, high = low + (kChunks == 2 ? 1 : 2);
      store_halves(to + low * kBlockBytes, to + high * kBlockBytes, field[i] << 10);
    }
  } else if constexpr (kKind == ScaleKind::e4m3) {
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
  constexpr ScaleKind kKind = Config::kValueScale;
  if constexpr (kKind == ScaleKind::e8m0) {
    const std::int32_t exponent = state_exponent(state);
    return exponent == kNoExponent ? 0.0F : exp2f(static_cast<float>(exponent - 127 - kScaleLift + 14));
  }
  if constexpr (kKind == ScaleKind::row || kKind == ScaleKind::group) {
    return Config::kValueUnit * __uint_as_float(254U * (1U << 23) - state.bias);
  }
  return Config::kValueUnit;
}

}  // namespace mpfa::sm90
