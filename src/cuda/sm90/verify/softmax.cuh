// The online softmax of a warpgroup over its tiles. All four warps sum over their keys relative to the same maxima.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/verify/products.cuh"

namespace mpfa::sm90 {

// P is relative to 2^kHeadroom times the largest weight when that was taken: so only a score that is 4 (log2) above it
// gives a P of 2 or more, which one bit of an f16 tells.
inline constexpr float kHeadroom = 3.0F, kCodeHeadroom = 2.0F;  // the latter of P in e4m3, see verify_p_scale
inline constexpr std::uint32_t kTwoOrMore = 0x40004000U;

/// Number of the barrier of a warpgroup; those before are of teams.
__device__ __forceinline__ int group_barrier() {
  return 8 + static_cast<int>(threadIdx.x / 128);
}

/// Neither zero nor infinite, as -inf of a hidden key and the zero of a score are multiplied by it.
__device__ __forceinline__ float finite_factor(float factor) {
  if (fabsf(factor) < FLT_MIN) return FLT_MIN;
  return fabsf(factor) == INFINITY ? copysignf(FLT_MAX, factor) : factor;
}

/// (factor, maximum) of the rows of a warp in shared memory: 16 bytes for columns 2 t and 2 t + 1 of a row tile.
template <class Config>
struct RowTops {
  std::uint32_t at;  // of the lane's columns of the first row tile

  /// memory: of the warpgroup.
  __device__ __forceinline__ explicit RowTops(std::uint32_t memory)
      : at(memory + Config::kTopsAt + threadIdx.x / 32 % 4 * Config::kRows * 8 + threadIdx.x % 4 * 16) {}

  __device__ __forceinline__ float4 load(int n) const { return ptx::load_shared(at + n * 64); }
  __device__ __forceinline__ void load(float4 (&all)[Config::kRowTiles]) const {
#pragma unroll
    for (int n = 0; n < Config::kRowTiles; ++n) all[n] = load(n);
  }
  __device__ __forceinline__ void store(int n, float4 v) const {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + n * 64), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
  }
  /// scaled: scores will be logits.
  __device__ __forceinline__ void start(const float* factors, bool scaled) const {
    if (threadIdx.x % 32 < 4) {
#pragma unroll
      for (int n = 0; n < Config::kRowTiles; ++n) {
        const float two[2] = {factors[column_row(n, 0)], factors[column_row(n, 1)]};
        store(n, make_float4(scaled ? 1.0F : two[0], scaled ? 1.0F : two[1], -FLT_MAX, -FLT_MAX));
      }
    }
    __syncwarp();
  }
  /// Makes the factors `unit` times those of the rows.
  __device__ __forceinline__ void scale(const float* factors, float unit) const {
    __syncwarp();
    if (threadIdx.x % 32 < 4) {
#pragma unroll
      for (int n = 0; n < Config::kRowTiles; ++n) {
        const float4 top = load(n);
        store(n, make_float4(finite_factor(factors[column_row(n, 0)] * unit),
                             finite_factor(factors[column_row(n, 1)] * unit), top.z, top.w));
      }
    }
    __syncwarp();
  }
};

template <class Config>
__device__ __forceinline__ void clear_state(GroupState<Config>& state) {
#pragma unroll
  for (int h = 0; h < Config::kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < Config::kScores; ++i) state.out[h][i] = 0.0F;
  }
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) state.sum[n][0] = state.sum[n][1] = 0.0F;
  constexpr bool kFloats = Config::kValueScale == ScaleKind::group || Config::kValueScale == ScaleKind::row;
  state.bias = kFloats ? kNoGroups : followed_bias(kNoneFollowed);
  state.key_bias = followed_bias(kNoneFollowed);
}

template <class Config>
__device__ __forceinline__ void scale_outputs(GroupState<Config>& state, float keep) {
#pragma unroll
  for (int h = 0; h < Config::kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < Config::kScores; ++i) state.out[h][i] *= keep;
  }
}

/// -inf for keys that a row does not see, and for those from `end` on. `first`: the first key of the warp.
template <class Config>
__device__ __forceinline__ void mask_group_scores(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                                  std::int32_t first, std::int32_t end, float (&x)[Config::kScores]) {
  const std::uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Keys seen = row_keys(p, s, row0 + column_row(n, j));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int32_t key = first + r * 8 + static_cast<std::int32_t>(g);
        if (key < seen.begin || key >= min(seen.end, end)) x[n * 4 + r * 2 + j] = -INFINITY;
      }
    }
  }
}

/// Puts NaN scales of V, found in a masked tile, into the outputs of the rows that see their keys. shows(row, key): not
/// hidden by a mask tensor.
template <class Config, class Shows>
__device__ __forceinline__ void spread_group_nan(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                                 std::int32_t first, std::uint32_t nan, Shows&& shows,
                                                 GroupState<Config>& state) {
  constexpr bool kByChunk = Config::kWarpChunks > 1 && Config::kValueScale != ScaleKind::row;
  constexpr std::uint32_t kOfChunks = kByChunk ? 0x11U : 0x1U;
  const std::uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll 1
  for (std::int32_t key = 0; key < kVerifyKeys; ++key) {
    const std::uint32_t blocks = __shfl_sync(0xFFFFFFFFU, nan, key / 2) >> (2 * (key % 2));
    const std::uint32_t own = Config::kValueScale == ScaleKind::e4m3 ? blocks >> (g / 4) : blocks;
    if ((own & kOfChunks) == 0) continue;
#pragma unroll
    for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Keys seen = row_keys(p, s, row0 + column_row(n, j));
        if (first + key < seen.begin || first + key >= seen.end || !shows(column_row(n, j), key)) continue;
#pragma unroll
        for (int h = 0; h < Config::kHalves; ++h) {
          if (kByChunk && (own >> 4 * (h / 2) & 1U) == 0) continue;
          state.out[h][n * 4 + j] = state.out[h][n * 4 + 2 + j] = __int_as_float(0x7FC00000);
        }
      }
    }
  }
}

/// P of the thread's scores as pairs of columns [n][key g, g + 8], and their sums, of kAddsEarly added to `sum`. True
/// if one is too large.
template <class Config>
__device__ __forceinline__ bool take_probabilities(const float (&x)[Config::kScores],
                                                   const float4 (&tops)[Config::kRowTiles],
                                                   float (&sum)[Config::kRowTiles][2],
                                                   std::uint32_t (&pairs)[Config::kRowTiles][2]) {
  constexpr bool kBegin = !Config::kAddsEarly;
  std::uint32_t all = 0;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    const float4 top = tops[n];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float p0 = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r], top.x, -top.z));
      const float p1 = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r + 1], top.y, -top.w));
      sum[n][0] = kBegin && r == 0 ? p0 : sum[n][0] + p0;
      sum[n][1] = kBegin && r == 0 ? p1 : sum[n][1] + p1;
      pairs[n][r] = half2_bits(__floats2half2_rn(p0, p1));
      all |= pairs[n][r];
    }
  }
  return (all & kTwoOrMore) != 0;
}

/// Where a lane's row of P's matrices lies in P's operand.
template <class Config>
__device__ __forceinline__ std::uint32_t probability_place() {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  return ((2 * warp + lane / 8 % 2) * Config::kRows + lane / 16 * 8 + lane % 8) * 16;
}

/// P as B operand to shared memory, from the lane's place on. Who reads it fences it, behind a barrier, where stores
/// are done: before, a warp would wait for them.
template <class Config>
__device__ __forceinline__ void store_probabilities(std::uint32_t at,
                                                    const std::uint32_t (&pairs)[Config::kRowTiles][2]) {
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; n += 2) {
    const std::uint32_t four[4] = {pairs[n][0], pairs[n][1], pairs[n + 1][0], pairs[n + 1][1]};
    ptx::store_matrices_transposed(at + n * 128, four);
  }
}

/// What a maximum is above the largest score when it is taken: P is then relative to it, codes of P as they are.
template <class Config>
__device__ __forceinline__ float maximum_above(const DecodeParams& p) {
  return Config::kRoundsP ? kCodeHeadroom - __log2f(p.p_scale) : kHeadroom;
}

/// What rank-one terms are multiplied by to be logits.
__device__ __forceinline__ float term_unit(const DecodeParams& p) {
  return p.scale * kLog2E;
}

/// Raises the maxima to those of the warpgroup's tile and `above` and scales what was summed before to them. terms: as
/// of take_codes.
template <class Config>
__device__ __forceinline__ void raise_group_maxima(const DecodeParams& p, const float (&x)[Config::kScores],
                                                   const float (&terms)[2][2], float above, const RowTops<Config>& tops,
                                                   std::uint32_t maxima, int barrier, GroupState<Config>& state) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    const float4 top = tops.load(n);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float factor = j == 0 ? top.x : top.y, first = x[n * 4 + j], second = x[n * 4 + 2 + j];
      float largest = fmaxf(first, second) * factor;
      if constexpr (Config::kRankOne) {
        const float unit = term_unit(p);
        largest = fmaxf(fmaf(first, factor, terms[0][j] * unit), fmaf(second, factor, terms[1][j] * unit));
      }
#pragma unroll
      for (int i = 4; i < 32; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, i));
      if (lane < 4) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(maxima + (warp * Config::kRows + n * 8 + 2 * t + j) * 4),
                     "f"(largest)
                     : "memory");
      }
    }
  }
  ptx::sync_some<128>(barrier);
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    float4 top = tops.load(n);
    float* const own[2] = {&top.z, &top.w};
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      std::uint32_t two[2];
      load_words(two, maxima + (w * Config::kRows + n * 8 + 2 * t) * 4);
      largest[0] = fmaxf(largest[0], __uint_as_float(two[0])), largest[1] = fmaxf(largest[1], __uint_as_float(two[1]));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float raised = fmaxf(*own[j], largest[j] + above), keep = fmaxf(ptx::exp2_fast(*own[j] - raised), FLT_MIN);
      *own[j] = raised;
      state.sum[n][j] *= keep;
#pragma unroll
      for (int h = 0; h < Config::kHalves; ++h) {
        state.out[h][n * 4 + j] *= keep, state.out[h][n * 4 + 2 + j] *= keep;
      }
    }
    __syncwarp();
    if (lane < 4) tops.store(n, top);
  }
  __syncwarp();
}

}  // namespace mpfa::sm90
