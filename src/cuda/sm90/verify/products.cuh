// The two products of a tile of 64 keys by warpgroup MMAs. Both are transposed: keys are the rows of scores, channels
// those of outputs, and query rows are columns. Codes are expanded into A operands; q and P are B operands in shared
// memory.
//
// A thread's share of a row of K, a quarter, is side by side in memory, so that its 8 codes of word m of it are inner
// indices of MMAs 2 m and 2 m + 1; q lies in that order, see query_place.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/codes.cuh"
#include "cuda/sm90/verify/key_scales.cuh"
#include "cuda/sm90/verify/value_scales.cuh"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

/// Byte offset in q's operand of pair k (codes k and k + 4) of word `word` of the 32-channel chunk `chunk` of a row.
template <class Config>
__device__ __forceinline__ std::uint32_t query_place(int row, int chunk, int word, int k) {
  // By matrix loads, also of 8 and 16 bits, an MMA has one chunk.
  constexpr bool kMatrices = kScalesSums<Config> || Config::kKeyInfo.bits > 4;
  const int of_row = chunk * 4 + word;
  const int outer = kMatrices ? chunk : of_row % Config::kChunks, place = kMatrices ? word : of_row / Config::kChunks;
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

/// Codes of a thread's keys g and g + 8; with 256 channels the second half of them later.
template <class Config>
struct KeyCodes {
  std::uint32_t words[2][Config::kChunks];

  __device__ __forceinline__ void load(std::uint32_t stage, const Lane<Config>& own) {
    at_ = stage + own.keys;
    load_half(0);
  }
  __device__ __forceinline__ void load_rest() {
    if constexpr (Config::kChunks == 8) load_half(4);
  }

 private:
  /// From word `first` on.
  __device__ __forceinline__ void load_half(std::uint32_t first) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t at = (at_ ^ first * 4) + k * 8 * Config::kKeyRowBytes;
      if constexpr (Config::kChunks == 2) {
        load_words(words[k], at);
      } else {
        const uint4 w = ptx::load_shared_words(at);
        words[k][first] = w.x, words[k][first + 1] = w.y, words[k][first + 2] = w.z, words[k][first + 3] = w.w;
      }
    }
  }

  std::uint32_t at_;
};

/// Starts x = scores of the warpgroup's tile. meanwhile: called when the first words are expanded.
template <class Config, class F>
__device__ __forceinline__ void start_scores(KeyCodes<Config>& keys, std::uint32_t queries,
                                             const KeyScales<Config>& scales, float (&x)[Config::kScores],
                                             F&& meanwhile) {
  const std::uint64_t rows = ptx::whole_descriptor(ptx::same_in_warp(queries));
#pragma unroll
  for (int m = 0; m < Config::kChunks; ++m) {
    if (m == (Config::kChunks == 8 ? 5 : 1)) meanwhile();
    if (m == 2) keys.load_rest();
    std::uint32_t f[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      expand_word<Config::kKey>(keys.words[k][m], f[k]);
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
  static constexpr bool kTwo = Config::kChunks == 2;  // the first sum is scaled where it is
  float sum[kTwo ? 1 : 2][Config::kScores];
  std::uint32_t words[4];
  SumScales<Config> scales;

  /// Asks for the first codes of the lane's row.
  __device__ __forceinline__ void load(std::uint32_t codes) { ptx::load_matrices(words, codes); }

  /// All but the end of the last chunk. `codes`: of the lane's row for matrix loads.
  __device__ __forceinline__ void start(std::uint32_t codes, std::uint32_t queries, const Lane<Config>& own,
                                        float (&x)[Config::kScores]) {
    const std::uint64_t rows = ptx::whole_descriptor(ptx::same_in_warp(queries));
#pragma unroll
    for (int c = 0; c < Config::kChunks; ++c) {
      std::uint32_t f[2][4];
      expand_word<Config::kKey>(words[c % 2 * 2], f[0]);
      expand_word<Config::kKey>(words[c % 2 * 2 + 1], f[1]);
      if (c % 2 == 1 && c + 1 < Config::kChunks) load(codes ^ ((c + 1) * 16));
      ptx::fence_mma();
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const std::uint32_t a[4] = {f[0][2 * s], f[1][2 * s], f[0][2 * s + 1], f[1][2 * s + 1]};
        ptx::multiply_async(of_chunk(c, x), a, rows + (2 * c + s) * 2 * Config::kRows, s);
      }
      ptx::commit_mma();
      if (c % 2 == 1) scales.take(own, c / 2);
      ptx::wait_mma<1>();  // at first of what was started before
      if (c > 0) add(c - 1, own, x);
    }
  }
  /// The rest, when all products are done.
  __device__ __forceinline__ void finish(const Lane<Config>& own, float (&x)[Config::kScores]) {
    add(Config::kChunks - 1, own, x);
  }

 private:
  __device__ __forceinline__ float (&of_chunk(int c, float (&x)[Config::kScores]))[Config::kScores] {
    return !kTwo ? sum[c % 2] : c == 0 ? x : sum[0];
  }
  __device__ __forceinline__ void add(int c, const Lane<Config>& own, float (&x)[Config::kScores]) {
    ptx::pin(of_chunk(c, x));
#pragma unroll
    for (int i = 0; i < Config::kScores; ++i) {
      const float scale = scales.key[i / 2 % 2][c % 2], all = of_chunk(c, x)[i];
      x[i] = c == 0 ? all * scale : fmaf(all, scale, x[i]);
    }
  }
};

/// V of the warp's channels and 32 keys, two steps of 16, as A operands [step][half].
template <class Config>
struct ValueSteps {
  std::uint32_t w[Config::kWarpChunks][4], a[2][Config::kHalves][4];

  /// codes: of the lane's key; which: the first or second 32 keys of the tile.
  __device__ __forceinline__ void load(std::uint32_t codes, int which) {
#pragma unroll
    for (int c = 0; c < Config::kWarpChunks; ++c) {
      ptx::load_matrices_transposed(w[c], (codes ^ c * 16U) + which * 32 * Config::kValueRowBytes);
    }
  }
  __device__ __forceinline__ void expand(const ValueScales<Config>& scales, int which, const Lane<Config>& own) {
#pragma unroll
    for (int i = 0; i < 2 * Config::kWarpChunks; ++i) {
      const int s = i % 2, c = i / 2;
      const std::uint32_t* scale = &scales.pair[c][4 * which + 2 * s];
      if constexpr (Config::kHalves == 1) {
        // The warp's half of the codes of both words, as one.
        std::uint32_t f[4];
        expand_word<Config::kValue>(__byte_perm(w[0][2 * s], w[0][2 * s + 1], own.value_bytes), f);
#pragma unroll
        for (int k = 0; k < 4; ++k) a[s][0][k] = multiply_half2(f[k], scale[k / 2]);
      } else {
        std::uint32_t f[2][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          expand_word<Config::kValue>(w[c][2 * s + r], f[r]);
#pragma unroll
          for (int k = 0; k < 4; ++k) f[r][k] = multiply_half2(f[r][k], scale[r]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          a[s][2 * c + h][0] = f[0][2 * h], a[s][2 * c + h][1] = f[0][2 * h + 1];
          a[s][2 * c + h][2] = f[1][2 * h], a[s][2 * c + h][3] = f[1][2 * h + 1];
        }
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

/// Whether factors and maxima of rows are read before the scores are waited for, and the descriptor of P is made before
/// the barrier. There are no registers for it beside masks, and for codes with scales of blocks beside clusters.
template <class Config>
inline constexpr bool kTopsAhead =
    !Config::kMasked && (Config::kValueInfo.bits > 4 ||
                         ((kScalesSums<Config> || !Config::kMerges) && Config::kD == 128 && Config::kRowTiles == 4));

/// What is known of a tile before its scores are.
template <class Config>
struct GroupTile {
  ValueScales<Config> value_scales;
  ValueSteps<Config> low;
  float4 top[Config::kRowTiles];
  float terms[2][2];   // kRankOne: of the thread's keys g and g + 8 and its columns
  float keep;          // what outputs have to be multiplied by
  std::uint32_t rare;  // alike in a warp but for the NaN
};
/// What few tiles have: rows that see other keys, outputs to be scaled, a mask tensor that acts, codes of V that are
/// NaN or infinite, places of the next tiles that nobody knows.
struct Rare {
  static constexpr std::uint32_t kNan = 0xFFU;  // of Unseen
  static constexpr std::uint32_t kMasked = 0x100U, kScaled = 0x200U, kMaskActs = 0x400U, kBroken = 0x800U,
                                 kLookUp = 0x1000U;
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
