// The online softmax of a warp that multiplies: 16 rows, of which a thread has g and g + 8, and of every 8 keys of a
// tile 2 t and 2 t + 1.
#pragma once

#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "cuda/sm90/expand/control.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// What scores of a thread's keys of a tile are multiplied by, 1 where K could have such scales and has none.
template <class Config>
struct ScoreScales {
  float of[Config::kScalesScores ? Config::kRowScores / 2 : 1];  // [n * 2 + j]: key 8 n + 2 t + j

  /// Of tile n of the block.
  __device__ __forceinline__ void load(const Control<Config>& control, std::uint32_t n) {
    const auto stage = static_cast<int>(n % Config::kStages);
    const std::uint32_t at = control.key_scale(stage, static_cast<int>(threadIdx.x % 4 * 2));
#pragma unroll
    for (int i = 0; i < Config::kRowScores / 4 && Config::kScalesScores; ++i) {
      std::uint32_t two[2];
      load_words(two, at + i * 32);
      of[2 * i] = __uint_as_float(two[0]), of[2 * i + 1] = __uint_as_float(two[1]);
    }
  }
  __device__ __forceinline__ void multiply(float (&x)[Config::kRowScores]) const {
#pragma unroll
    for (int i = 0; i < Config::kRowScores && Config::kScalesScores; ++i) x[i] *= of[i / 4 * 2 + i % 2];
  }
};

/// Sums of a piece, of a thread.
template <class Config>
struct RowState {
  float out[Config::kD / 2];                  // [n * 4 + r * 2 + j]: row g + 8 r, place 8 n + 2 t + j of the channels
  float sum[2], top[2];                       // over the thread's own keys; what P is relative to, in the log2 domain
  float factor[2];                            // of scores
  std::int32_t key_exponent, value_exponent;  // that scores and outputs are relative to
};

/// The thread's first row of the block's.
template <class Config>
__device__ __forceinline__ std::int32_t first_row() {
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32), g = static_cast<std::int32_t>(threadIdx.x % 32 / 4);
  return (Config::kRowBlocks == 1 ? warp % 4 : warp) * 16 + g;
}

/// -inf for keys that a row does not see, and for those from `end` on. `first`: the first key of the tile.
template <class Config>
__device__ __forceinline__ void mask_row_scores(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                                std::int32_t first, std::int32_t end, float (&x)[Config::kRowScores]) {
  const auto t = static_cast<std::int32_t>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Keys seen = row_keys(p, s, row0 + first_row<Config>() + 8 * r);
    const std::int32_t begin = seen.begin - first - 2 * t, count = min(seen.end, end) - first - 2 * t - begin;
#pragma unroll
    for (int i = 0; i < Config::kRowScores / 2; ++i) {
      const std::int32_t key = i / 2 * 8 + i % 2;
      if (static_cast<std::uint32_t>(key - begin) >= static_cast<std::uint32_t>(max(count, 0))) {
        x[i / 2 * 4 + r * 2 + i % 2] = -INFINITY;
      }
    }
  }
}

/// 2^n without overflow.
__device__ __forceinline__ float power_of_two(std::int32_t n) {
  return __uint_as_float(static_cast<std::uint32_t>(min(max(n, -126), 127) + 127) << 23);
}

/// For tiles whose scales are not all relative to the same: scores become relative to the state's. lifts: what P of
/// every 16 keys is to be multiplied by, relative to V's exponent, which the state follows.
template <class Config>
__device__ __forceinline__ void follow_exponents(std::uint32_t units, float (&x)[Config::kRowScores],
                                                 float (&lifts)[Config::kRowScores / 8], RowState<Config>& state) {
  std::int32_t values[Config::kRowScores / 8], top = state.value_exponent;
#pragma unroll
  for (int w = 0; w < Config::kRowScores / 8; ++w) {
    std::uint32_t both[2];
    load_words(both, units + w * 8);
    if constexpr (Config::kFollowsKeys) {
      const float unit = power_of_two(static_cast<std::int32_t>(both[0]) - state.key_exponent);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[w * 8 + i] *= unit;
    }
    values[w] = static_cast<std::int32_t>(both[1]);
    top = max(top, values[w]);
  }
  if (top > state.value_exponent) {
    const float keep = power_of_two(state.value_exponent - top);
#pragma unroll
    for (float& out : state.out) out *= keep;
    state.value_exponent = top;
  }
#pragma unroll
  for (int w = 0; w < Config::kRowScores / 8; ++w) lifts[w] = power_of_two(values[w] - top);
}

/// In the type that V has when it is multiplied.
template <class Config>
__device__ __forceinline__ std::uint32_t pack_row_pair(float x, float y) {
  if constexpr (!Config::kCopies) return half2_bits(__floats2half2_rn(x, y));
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// P of the thread's scores as pairs of keys [n][row g, g + 8], and their sums. True if one is too large.
template <class Config>
__device__ __forceinline__ bool take_row_probabilities(const float (&x)[Config::kRowScores],
                                                       const RowState<Config>& state, float (&sum)[2],
                                                       std::uint32_t (&pairs)[Config::kRowScores / 4][2]) {
  std::uint32_t all = 0;
#pragma unroll
  for (int n = 0; n < Config::kRowScores / 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float p0 = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r], state.factor[r], -state.top[r]));
      const float p1 = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r + 1], state.factor[r], -state.top[r]));
      sum[r] = n == 0 ? p0 + p1 : sum[r] + (p0 + p1);
      pairs[n][r] = pack_row_pair<Config>(p0, p1);
      all |= pairs[n][r];
    }
  }
  return (all & kTwoOrMore) != 0;
}

/// Raises what P is relative to to the rows' maxima of the tile, and scales what was summed before.
template <class Config>
__device__ __forceinline__ void raise_row_tops(const float (&x)[Config::kRowScores], RowState<Config>& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < Config::kRowScores / 2; ++i) {
      largest = fmaxf(largest, x[i / 2 * 4 + r * 2 + i % 2] * state.factor[r]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
    const float raised = fmaxf(state.top[r], largest + kHeadroom);
    const float keep = fmaxf(ptx::exp2_fast(state.top[r] - raised), FLT_MIN);
    state.top[r] = raised;
    state.sum[r] *= keep;
#pragma unroll
    for (int n = 0; n < Config::kD / 8; ++n) {
      state.out[n * 4 + r * 2] *= keep, state.out[n * 4 + r * 2 + 1] *= keep;
    }
  }
}

}  // namespace mpfa::sm90
