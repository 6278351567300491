// The two products of a tile of 32 keys: scores, and values times P.
//
// Scores are computed transposed: K is the A operand (rows = keys), the query rows of the KV head are the 8 columns.
// Values too: V^T is A (rows = channels), P is B. Row j of the 8x8 matrix (m, h) is key 16 m + 8 h + j. Codes keep
// their order inside 32 channels; q is permuted to it instead.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/codes.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

/// kCount words of shared memory.
template <int kCount>
__device__ __forceinline__ void load_words(std::uint32_t (&w)[kCount], std::uint32_t from) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  if constexpr (kCount == 1) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[0]) : "r"(from));
  } else if constexpr (kCount == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from));
  } else {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from));
  }
}

/// Row scales of the thread's four keys g, g + 8, g + 16, g + 24.
__device__ __forceinline__ void load_row_scales(float (&s)[4], std::uint32_t scales) {
  std::uint32_t w[4];
  load_words(w, scales + threadIdx.x % 32 / 4 * 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = __uint_as_float(w[i]);
}

/// Offset of the row of 16 bytes whose address a lane gives to a matrix load of chunks 0 and 1, keys 0 to 15. The pair
/// of chunks 2 p, 2 p + 1: exclusive or with 32 p.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t matrix_row() {
  const std::uint32_t lane = threadIdx.x % 32;
  return code_offset<kRowBytes>(lane % 16, lane / 16);
}

template <Operand kOperand>
__device__ __forceinline__ void multiply_tile(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                              std::uint32_t b1) {
  if constexpr (kOperand == Operand::bf16) {
    ptx::multiply_add_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
  } else {
    ptx::multiply_add(c, a[0], a[1], a[2], a[3], b0, b1);
  }
}

/// x += q . K' of a tile, in units of the factor (and for ScaleKind::row x = 0 before). queries: B operands [row
/// tile][chunk][lane], 16 bytes each.
template <class Config>
__device__ __forceinline__ void score_tile(std::uint32_t codes, std::uint32_t matrix, std::uint32_t scales,
                                           std::uint32_t queries, Scores<Config>& x) {
  using Key = Chunks<Config::kKey>;
  constexpr ScaleKind kScale = Config::kKeyScale;
  constexpr bool kOfSums = kScale == ScaleKind::group || kScale == ScaleKind::e8m0;  // scales of chunks of 32 channels
  constexpr bool kOfCodes = kScale == ScaleKind::e4m3;
  constexpr int kSteps = Key::kSteps, kRowBytes = Config::kChunks * (kOfCodes ? 8 : 4);
  // q of 4-bit K is loaded part by part: with four row tiles registers are scarce.
  constexpr int kWords = kSteps == 1 ? 2 : 4, kLoads = 2 * kSteps / kWords;
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t row_scales = scales + g * kRowBytes + (kOfCodes ? t / 2 * Config::kChunks * 4 : 0);
#pragma unroll
  for (int pair = 0; pair < Config::kKeyRowBytes / 32; ++pair) {
    const int c = pair * kSteps / 2;                         // first chunk of 32 channels
    std::uint32_t scale[2][2][kSteps > 2 ? kSteps / 2 : 1];  // [m][row g, row g + 8][chunk]
    std::uint32_t w[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if constexpr (kOfSums || kOfCodes) {
        load_words(scale[m][0], row_scales + 16 * m * kRowBytes + c * 4);
        load_words(scale[m][1], row_scales + (16 * m + 8) * kRowBytes + c * 4);
      }
      ptx::load_matrices(w[m], codes + ((matrix ^ (pair * 32)) + m * Config::kKeyRowBytes * 16));
    }
    float sum[Config::kRowTiles][2][4];
    std::uint32_t q[Config::kRowTiles][kWords];
#pragma unroll
    for (int e = 0; e < Key::kParts; ++e) {
      if (e < kLoads) {
#pragma unroll
        for (int n = 0; n < Config::kRowTiles; ++n) {
          load_words(q[n],
                     queries + (n * Config::kChunks + c + e) * 512 + lane * 16 + (kSteps == 1 ? pair % 2 * 8 : 0));
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        std::uint32_t a[Key::kPartSteps][4];
        Key::expand_keys(w[m], e, a);
        if constexpr (kOfCodes) {
#pragma unroll
          for (int i = 0; i < Key::kPartSteps * 4; ++i) {
            a[i / 4][i % 4] = multiply_half2(a[i / 4][i % 4], scale[m][i % 2][e]);
          }
        }
#pragma unroll
        for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
          for (int s = 0; s < Key::kPartSteps; ++s) {
            const int step = e * Key::kPartSteps + s;
            const auto* b = &q[n][2 * step % kWords];
            if constexpr (kOfSums) {
              if (step % 2 == 0) sum[n][m][0] = sum[n][m][1] = sum[n][m][2] = sum[n][m][3] = 0.0F;
              multiply_tile<Config::kKey>(sum[n][m], a[s], b[0], b[1]);
              if (step % 2 == 0) continue;
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                x[n][m][i] = fmaf(sum[n][m][i], __uint_as_float(scale[m][i / 2][step / 2]), x[n][m][i]);
              }
            } else {
              multiply_tile<Config::kKey>(x[n][m], a[s], b[0], b[1]);
            }
          }
        }
      }
    }
  }
  if constexpr (kScale == ScaleKind::row) {
    float scale[4];
    load_row_scales(scale, scales);
#pragma unroll
    for (int i = 0; i < Config::kRowTiles * 8; ++i) x[i / 8][i / 4 % 2][i % 4] *= scale[i % 8 / 2];
  }
}

/// out += P V of a tile. p [n][m][h]: pairs of 16-bit P (columns 2 t, 2 t + 1) of the key of row g.
template <class Config>
__device__ __forceinline__ void add_values(std::uint32_t codes, std::uint32_t matrix, std::uint32_t scales,
                                           const std::uint32_t (&p)[Config::kRowTiles][2][2], State<Config>& state) {
  using Value = Chunks<Config::kValue>;
  constexpr ScaleKind kScale = Config::kValueScale;
  constexpr bool kOfP = kScale == ScaleKind::group || kScale == ScaleKind::e8m0;
  constexpr bool kOfCodes = kScale == ScaleKind::e4m3;
  constexpr int kSteps = Value::kSteps, kPairChunks = kSteps > 2 ? kSteps / 2 : 1;
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  std::uint32_t b[Config::kRowTiles][2][2];
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[n][i / 2][i % 2] = ptx::transpose_matrix(p[n][i / 2][i % 2]);
  }
#pragma unroll
  for (int pair = 0; pair < Config::kValueRowBytes / 32; ++pair) {
    const int c = pair * kSteps / 2;
    // Scales of the thread's 8 keys (pairs m, h) for its block of the chunks.
    std::uint32_t scale[kPairChunks][4];
    if constexpr (kOfP || kOfCodes) {
#pragma unroll
      for (int e = 0; e < kPairChunks; ++e) {
        const std::uint32_t block = kOfCodes ? 2 * (c + e) + g / 4 : c + e;
        load_words(scale[e], scales + block * kTileKeys * 2 + t * 16);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      std::uint32_t w[4];
      ptx::load_matrices_transposed(w, codes + ((matrix ^ (pair * 32)) + m * Config::kValueRowBytes * 16));
      std::uint32_t b0[Config::kRowTiles], b1[Config::kRowTiles];
#pragma unroll
      for (int e = 0; e < Value::kParts; ++e) {
        std::uint32_t a[Value::kPartSteps][4];
        Value::expand_values(w, e, a);
        if constexpr (kOfCodes) {
#pragma unroll
          for (int i = 0; i < Value::kPartSteps * 4; ++i) {
            a[i / 4][i % 4] = multiply_half2(a[i / 4][i % 4], scale[e][2 * m + i % 4 / 2]);
          }
        }
#pragma unroll
        for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
          for (int s = 0; s < Value::kPartSteps; ++s) {
            const int step = e * Value::kPartSteps + s, mma = pair * kSteps + step;
            if (step % 2 == 0) {
              b0[n] = b[n][m][0], b1[n] = b[n][m][1];
              if constexpr (kOfP) {
                b0[n] = multiply_half2(b0[n], scale[step / 2][2 * m]);
                b1[n] = multiply_half2(b1[n], scale[step / 2][2 * m + 1]);
              }
            }
            multiply_tile<Config::kValue>(state.out[n][mma / 2][mma % 2], a[s], b0[n], b1[n]);
          }
        }
      }
    }
  }
}

}  // namespace mpfa::sm90
