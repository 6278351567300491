// The two products of a tile of 64 keys by warpgroup MMAs. Both are transposed: keys are the rows of scores, channels
// those of outputs, and query rows are columns. Codes are expanded into A operands; q and P are B operands in shared
// memory.
//
// A thread's share of a row of K is side by side in memory, so that its 8 codes of word m of channels 32 t.. are inner
// indices of MMAs 2 m and 2 m + 1; q lies in that order, see query_place.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/codes.cuh"
#include "cuda/sm90/verify/scales.cuh"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

/// Byte offset in q's operand of pair k (codes k and k + 4) of word `word` of the 32-channel chunk `chunk` of a row.
template <class Config>
__device__ __forceinline__ std::uint32_t query_place(int row, int chunk, int word, int k) {
  // By matrix loads, also of 8 and 16 bits, an MMA has one chunk.
  constexpr bool kMatrices = kScalesSums<Config> || Config::kKeyInfo.bits > 4;
  const int outer = kMatrices ? chunk : word, place = kMatrices ? word : chunk;
  const int step = 2 * outer + k / 2, inner = k % 2;
  return static_cast<std::uint32_t>(((step * 2 + inner) * Config::kRows + row) * 16 + place * 4);
}

template <Operand kOperand>
__device__ __forceinline__ void expand_word(std::uint32_t w, std::uint32_t (&f)[4]) {
  if constexpr (kOperand == Operand::int4) {
    expand_int4(w, f);
  } else {
    expand_e2m1(w, f);
  }
}

/// Codes of a thread's keys g and g + 8.
template <class Config>
struct KeyCodes {
  uint4 codes[2];

  __device__ __forceinline__ void load(std::uint32_t stage, const Lane<Config>& own) {
    codes[0] = ptx::load_shared_words(stage + own.keys);
    codes[1] = ptx::load_shared_words(stage + own.keys + 8 * Config::kKeyRowBytes);
  }
};

/// Starts x = scores of the warpgroup's tile. meanwhile: called when a quarter of the codes is expanded.
template <class Config, class F>
__device__ __forceinline__ void start_scores(const KeyCodes<Config>& keys, std::uint32_t queries,
                                             const KeyScales<Config>& scales, float (&x)[Config::kScores],
                                             F&& meanwhile) {
  const uint4 low = keys.codes[0], high = keys.codes[1];
  const std::uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  const std::uint64_t rows = ptx::whole_descriptor(ptx::same_in_warp(queries));
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (m == 1) meanwhile();
    std::uint32_t f[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      expand_word<Config::kKey>(words[k][m], f[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) f[k][i] = multiply_half2(f[k][i], scales(k, m));
    }
    ptx::fence_mma();
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const std::uint32_t a[4] = {f[0][2 * s], f[1][2 * s], f[0][2 * s + 1], f[1][2 * s + 1]};
      ptx::multiply_async(x, a, rows + (2 * m + s) * 2 * Config::kRows, m + s > 0 ? 1 : 0);
    }
    ptx::commit_mma();
    if (m == 0) ptx::wait_mma<1>();  // frees the registers of what was started before
  }
}

/// Scores of the warpgroup's tile as sums of chunks of 32 channels, which are scaled one by one.
template <class Config>
struct ScoreSums {
  float sum[2][Config::kScores];
  SumScales<Config> scales;

  /// All but the end of the last chunk. `codes`: of the lane's row for matrix loads.
  __device__ __forceinline__ void start(std::uint32_t codes, std::uint32_t queries, const Lane<Config>& own,
                                        float (&x)[Config::kScores]) {
    const std::uint64_t rows = ptx::whole_descriptor(ptx::same_in_warp(queries));
    std::uint32_t w[4];
#pragma unroll
    for (int c = 0; c < Config::kChunks; ++c) {
      if (c % 2 == 0) ptx::load_matrices(w, codes ^ (c * 16));
      std::uint32_t f[2][4];
      expand_word<Config::kKey>(w[c % 2 * 2], f[0]);
      expand_word<Config::kKey>(w[c % 2 * 2 + 1], f[1]);
      ptx::fence_mma();
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const std::uint32_t a[4] = {f[0][2 * s], f[1][2 * s], f[0][2 * s + 1], f[1][2 * s + 1]};
        ptx::multiply_async(sum[c % 2], a, rows + (2 * c + s) * 2 * Config::kRows, s);
      }
      ptx::commit_mma();
      ptx::wait_mma<1>();  // at first of what was started before
      if (c > 0) add(c - 1, own, x);
    }
  }
  /// The rest, when all products are done.
  __device__ __forceinline__ void finish(const Lane<Config>& own, float (&x)[Config::kScores]) {
    add(Config::kChunks - 1, own, x);
  }

 private:
  __device__ __forceinline__ void add(int c, const Lane<Config>& own, float (&x)[Config::kScores]) {
    if (c % 2 == 0) scales.take(own, c / 2);
    ptx::pin(sum[c % 2]);
#pragma unroll
    for (int i = 0; i < Config::kScores; ++i) {
      const float scale = scales.key[i / 2 % 2][c % 2];
      x[i] = c == 0 ? sum[0][i] * scale : fmaf(sum[c % 2][i], scale, x[i]);
    }
  }
};

/// V of the warp's channels and 32 keys, two steps of 16, as A operands [step][half].
template <class Config>
struct ValueSteps {
  std::uint32_t w[4], a[2][Config::kHalves][4];

  /// codes: of the lane's key; which: the first or second 32 keys of the tile.
  __device__ __forceinline__ void load(std::uint32_t codes, int which) {
    ptx::load_matrices_transposed(w, codes + which * 32 * Config::kValueRowBytes);
  }
  __device__ __forceinline__ void expand(const ValueScales<Config>& scales, int which) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      std::uint32_t f[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        expand_word<Config::kValue>(w[2 * s + r], f[r]);
#pragma unroll
        for (int i = 0; i < 4; ++i) f[r][i] = multiply_half2(f[r][i], scales.pair[4 * which + 2 * s + r]);
      }
#pragma unroll
      for (int h = 0; h < Config::kHalves; ++h) {
        a[s][h][0] = f[0][2 * h], a[s][h][1] = f[0][2 * h + 1];
        a[s][h][2] = f[1][2 * h], a[s][h][3] = f[1][2 * h + 1];
      }
    }
  }
  /// Has all of it computed before this place.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 8 * Config::kHalves; ++i)
      asm volatile("" : "+r"(a[i / (4 * Config::kHalves)][i / 4 % Config::kHalves][i % 4]));
  }
};

/// d += a b of the formats' 16-bit type, see multiply_async.
template <class Config, int kCount>
__device__ __forceinline__ void multiply_rows(float (&d)[kCount], const std::uint32_t (&a)[4], std::uint64_t b,
                                              int add) {
  if constexpr (Config::kValue == Operand::bf16) {
    ptx::multiply_async_bf16(d, a, b, add);
  } else {
    ptx::multiply_async(d, a, b, add);
  }
}

/// Starts out += V^T P of 32 keys.
template <class Config>
__device__ __forceinline__ void start_values(const ValueSteps<Config>& v, std::uint32_t probabilities, int which,
                                             GroupState<Config>& state) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int h = 0; h < Config::kHalves; ++h) {
      multiply_rows<Config>(state.out[h], v.a[s][h],
                            ptx::whole_descriptor(probabilities) + (2 * which + s) * 2 * Config::kRows, 1);
    }
  }
}

}  // namespace mpfa::sm90
