// The online softmax of a warp that multiplies: 16 rows, of which a thread has g and g + 8, and of every 8 keys of a
// tile 2 t and 2 t + 1.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cuda/sm90/expand/control.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

inline constexpr int kRowScores = kExpandKeys / 2;  // of a thread: [n * 4 + r * 2 + j]: row g + 8 r, key 8 n + 2 t + j

/// What scores of a thread's keys of a tile are multiplied by, 1 where K could have such scales and has none.
template <class Config>
struct ScoreScales {
  float of[Config::kScalesScores ? kRowScores / 2 : 1];  // [n * 2 + j]: key 8 n + 2 t + j

  /// Of tile n of the block.
  __device__ __forceinline__ void load(const Control<Config>& control, std::uint32_t n) {
    const auto stage = static_cast<int>(n % Config::kStages);
    const std::uint32_t at = control.key_scale(stage, static_cast<int>(threadIdx.x % 4 * 2));
#pragma unroll
    for (int i = 0; i < kRowScores / 4 && Config::kScalesScores; ++i) {
      std::uint32_t two[2];
      load_words(two, at + i * 32);
      of[2 * i] = __uint_as_float(two[0]), of[2 * i + 1] = __uint_as_float(two[1]);
    }
  }
  __device__ __forceinline__ void multiply(float (&x)[kRowScores]) const {
#pragma unroll
    for (int i = 0; i < kRowScores && Config::kScalesScores; ++i) x[i] *= of[i / 4 * 2 + i % 2];
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
                                                std::int32_t first, std::int32_t end, float (&x)[kRowScores]) {
  const auto t = static_cast<std::int32_t>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Keys seen = row_keys(p, s, row0 + first_row<Config>() + 8 * r);
    const std::int32_t begin = seen.begin - first - 2 * t, count = min(seen.end, end) - first - 2 * t - begin;
#pragma unroll
    for (int i = 0; i < kRowScores / 2; ++i) {
      const std::int32_t key = i / 2 * 8 + i % 2;
      if (static_cast<std::uint32_t>(key - begin) >= static_cast<std::uint32_t>(max(count, 0))) {
        x[i / 2 * 4 + r * 2 + i % 2] = -INFINITY;
      }
    }
  }
}

/// Puts what is NaN in V of a masked tile into the outputs of the rows that see its keys. `at`: what the tile's first
/// key has in shared memory, see Control::broken.
template <class Config>
__device__ __forceinline__ void spread_row_nan(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                               std::int32_t first, std::uint32_t at, RowState<Config>& state) {
  constexpr bool kChannels = Config::kBrokenBytes == 16;
  std::uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < (kChannels ? 8 : 1); ++i) {
    std::uint32_t word;
    const std::uint32_t from = at + (threadIdx.x % (kChannels ? 32 : 16) + i * 32) * 4;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    any |= word;
  }
  if (!__any_sync(0xFFFFFFFFU, any != 0)) return;
  const std::uint32_t t = threadIdx.x % 4;
#pragma unroll 1
  for (std::int32_t key = 0; key < kExpandKeys; ++key) {
    std::uint32_t bits[4];
    if constexpr (kChannels) {
      load_words(bits, at + key * 16);
    } else {
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(bits[0]) : "r"(at + key) : "memory");
      bits[1] = bits[2] = bits[3] = 0;
    }
    if ((bits[0] | bits[1] | bits[2] | bits[3]) == 0) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Keys seen = row_keys(p, s, row0 + first_row<Config>() + 8 * r);
      if (first + key < seen.begin || first + key >= seen.end) continue;
#pragma unroll
      for (int i = 0; i < Config::kD / 4; ++i) {
        const std::uint32_t n = i / 2, place = n % 4 * 8 + 2 * t + i % 2;
        const bool broken = kChannels ? (bits[n / 4] >> place & 1U) != 0 : (bits[0] >> n / 2 & 1U) != 0;
        if (broken) state.out[n * 4 + r * 2 + i % 2] = __int_as_float(0x7FC00000);
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
__device__ __forceinline__ void follow_exponents(std::uint32_t units, float (&x)[kRowScores],
                                                 float (&lifts)[kRowScores / 8], RowState<Config>& state) {
  std::int32_t values[kRowScores / 8], top = state.value_exponent;
#pragma unroll
  for (int w = 0; w < kRowScores / 8; ++w) {
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
  for (int w = 0; w < kRowScores / 8; ++w) lifts[w] = power_of_two(values[w] - top);
}

/// P of the thread's scores as pairs of keys [n][row g, g + 8], and their sums. True if one is too large.
template <class Config>
__device__ __forceinline__ bool take_row_probabilities(const float (&x)[kRowScores], const RowState<Config>& state,
                                                       float (&sum)[2], std::uint32_t (&pairs)[kRowScores / 4][2]) {
  std::uint32_t all = 0;
#pragma unroll
  for (int n = 0; n < kRowScores / 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float p0 = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r], state.factor[r], -state.top[r]));
      const float p1 = ptx::exp2_fast(fmaf(x[n * 4 + 2 * r + 1], state.factor[r], -state.top[r]));
      sum[r] = n == 0 ? p0 + p1 : sum[r] + (p0 + p1);
      pairs[n][r] = half2_bits(__floats2half2_rn(p0, p1));
      all |= pairs[n][r];
    }
  }
  return (all & kTwoOrMore) != 0;
}

/// Raises what P is relative to to the rows' maxima of the tile, and scales what was summed before.
template <class Config>
__device__ __forceinline__ void raise_row_tops(const float (&x)[kRowScores], RowState<Config>& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kRowScores / 2; ++i) {
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
