// Scores of mxfp4 keys by MMAs of warpgroups in e4m3, for one or two row tiles. Each of the four warps has a tile of
// its own and gives 16 of its keys at a time as rows; query rows are the columns, in shared memory. A block of 32
// channels is one MMA for every term of q, whose sum is multiplied by the block's scale.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/e4m3_codes.cuh"
#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

// A row of q is a sum of e4m3 terms: two are exact for bf16 down to 2^-9 of the row's largest element, three for f16.
inline constexpr int kQueryTerms = 3;
/// Of 32 channels.
template <class Config>
inline constexpr int kTermBytes = 32 * Config::kRows;

__device__ __forceinline__ bool has_third_term(const DecodeParams& p) {
  return !p.q_bf16 && !p.round_q_bf16;
}

/// Offset of what thread t of a row has of one of the two halves of 16 channels; term: [term][chunk].
template <class Config>
__device__ __forceinline__ std::uint32_t term_place(int row, int chunk, int term, int half) {
  return (term * Config::kChunks + chunk) * kTermBytes<Config> + half * 16 * Config::kRows + row * 16 +
         threadIdx.x % 4 * 4;
}

/// Descriptor of the first chunk of the first term; the next chunk is kTermBytes / 16 further. Computed for every tile,
/// so that it is in uniform registers; and in 64 bits, as then one instruction there makes another descriptor of it.
template <class Config>
__device__ __forceinline__ std::uint64_t first_term(std::uint32_t queries) {
  return std::uint64_t{ptx::kColumnStep} << 32 | ptx::same_in_warp(ptx::matrix_descriptor(queries, Config::kRows));
}

/// d = or += a [64 x 32] b [32 x 8 or 16].
__device__ __forceinline__ void multiply_e4m3_async(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b,
                                                    bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %9, 0;"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0));
}
__device__ __forceinline__ void multiply_e4m3_async(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b,
                                                    bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %13, 0;"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
      "p, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0));
}

/// x = q . K' of a tile, in units of the factor. queries: address of the first term.
template <class Config, int kTerms>
__device__ __forceinline__ void score_tile_by_group(std::uint32_t codes, std::uint32_t matrix, std::uint32_t scales,
                                                    std::uint32_t queries, Scores<Config>& x) {
  // A step: one or two chunks of 16 keys, as registers allow.
  constexpr int kRowBytes = Config::kChunks * 4, kStepChunks = 2 / Config::kRowTiles;
  constexpr int kSteps = 2 * Config::kChunks / kStepChunks;
  const std::uint32_t row_scales = scales + threadIdx.x % 32 / 4 * kRowBytes;
  const std::uint64_t terms = first_term<Config>(queries);
  std::uint32_t a[2][kStepChunks][4], w[4], scale[2][2];  // scale: [row g, row g + 8][chunk]
  float sum[2][kStepChunks][4 * Config::kRowTiles];
  const auto start = [&](int step) {
    auto& own = a[step % 2];
    const int place = step * kStepChunks, pair = place / 4, half = place / 2 % 2;
    if (place % 2 == 0) {
      ptx::load_matrices(w, codes + ((matrix ^ (pair * 32)) + half * Config::kKeyRowBytes * 16));
    }
#pragma unroll
    for (int k = 0; k < kStepChunks; ++k) {
      const int e = place % 2 + k;
      expand_e2m1_bytes(w[2 * e], own[k][0], own[k][2]);
      expand_e2m1_bytes(w[2 * e + 1], own[k][1], own[k][3]);
    }
    ptx::fence_mma();
#pragma unroll
    for (int k = 0; k < kStepChunks; ++k) {
      const int chunk = pair * 2 + place % 2 + k;
      // Small terms first: a sum has few more bits than its largest product.
#pragma unroll
      for (int term = kTerms - 1; term >= 0; --term) {
        multiply_e4m3_async(sum[step % 2][k], own[k],
                            terms + (term * Config::kChunks + chunk) * (kTermBytes<Config> / 16), term < kTerms - 1);
      }
    }
    ptx::commit_mma();
  };
  const auto add = [&](int step) {
    auto& own = sum[step % 2];
    const int place = step * kStepChunks, pair = place / 4, half = place / 2 % 2;
    if (place % 2 == 0) {
      load_words(scale[0], row_scales + half * 16 * kRowBytes + pair * 8);
      load_words(scale[1], row_scales + (half * 16 + 8) * kRowBytes + pair * 8);
    }
    if (step < kSteps - 1) {
      ptx::wait_mma<1>();
    } else {
      ptx::wait_mma<0>();
    }
#pragma unroll
    for (int k = 0; k < kStepChunks; ++k) ptx::pin(own[k]);
#pragma unroll
    for (int k = 0; k < kStepChunks; ++k) {
      const int e = place % 2 + k;
#pragma unroll
      for (int i = 0; i < 4 * Config::kRowTiles; ++i) {
        float& score = x[i / 4][half][i % 4];
        const float factor = __uint_as_float(scale[i % 4 / 2][e]);
        score = pair == 0 && e == 0 ? own[k][i] * factor : fmaf(own[k][i], factor, score);
      }
    }
  };
  start(0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step + 1 < kSteps) start(step + 1);
    add(step);
  }
}

}  // namespace mpfa::sm90
