// Scores of mxfp4 keys by MMAs of warpgroups in e4m3, for one row tile. Each of the four warps has a tile of its own
// and gives 16 of its keys at a time as rows; query rows are the columns, in shared memory. A block of 32 channels is
// one MMA for every term of q, whose sum is multiplied by the block's scale.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/e4m3_codes.cuh"
#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

// A row of q is a sum of e4m3 terms: two are exact for bf16 down to 2^-9 of the row's largest element, three for f16.
inline constexpr int kQueryTerms = 3;
inline constexpr int kTermBytes = 256;  // of 32 channels and 8 rows

__device__ __forceinline__ bool has_third_term(const DecodeParams& p) {
  return !p.q_bf16 && !p.round_q_bf16;
}

/// Offset of what thread t of a row has of one of the two halves of 16 channels; term: [term][chunk].
template <class Config>
__device__ __forceinline__ std::uint32_t term_place(int row, int chunk, int term, int half) {
  return (term * Config::kChunks + chunk) * kTermBytes + half * 128 + row * 16 + threadIdx.x % 4 * 4;
}

/// Descriptor of the first chunk of the first term; the next chunk is kTermBytes / 16 further. Computed for every tile,
/// so that it is in uniform registers; and in 64 bits, as then one instruction there makes another descriptor of it.
__device__ __forceinline__ std::uint64_t first_term(std::uint32_t queries) {
  return std::uint64_t{ptx::kColumnStep} << 32 | ptx::same_in_warp(ptx::matrix_descriptor(queries, 8));
}

/// d = or += a [64 x 32] b [32 x 8].
__device__ __forceinline__ void multiply_e4m3_async(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b,
                                                    bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %9, 0;"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0));
}

/// x = q . K' of a tile, in units of the factor. queries: address of the first term.
template <class Config, int kTerms>
__device__ __forceinline__ void score_tile_by_group(std::uint32_t codes, std::uint32_t matrix, std::uint32_t scales,
                                                    std::uint32_t queries, Scores<Config>& x) {
  constexpr int kRowBytes = Config::kChunks * 4, kSteps = Config::kChunks;  // a step: two chunks of 16 keys
  const std::uint32_t row_scales = scales + threadIdx.x % 32 / 4 * kRowBytes;
  const std::uint64_t terms = first_term(queries);
  std::uint32_t a[2][2][4];  // [step][chunk]
  float sum[2][2][4];
  const auto start = [&](int step) {
    auto& own = a[step % 2];
    std::uint32_t w[4];
    ptx::load_matrices(w, codes + ((matrix ^ (step / 2 * 32)) + step % 2 * Config::kKeyRowBytes * 16));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      expand_e2m1_bytes(w[2 * e], own[e][0], own[e][2]);
      expand_e2m1_bytes(w[2 * e + 1], own[e][1], own[e][3]);
    }
    ptx::fence_mma();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      // Small terms first: a sum has few more bits than its largest product.
#pragma unroll
      for (int term = kTerms - 1; term >= 0; --term) {
        multiply_e4m3_async(sum[step % 2][e], own[e],
                            terms + (term * Config::kChunks + step / 2 * 2 + e) * (kTermBytes / 16), term < kTerms - 1);
      }
    }
    ptx::commit_mma();
  };
  const auto add = [&](int step) {
    auto& own = sum[step % 2];
    std::uint32_t scale[2][2];  // [row g, row g + 8][chunk]
    load_words(scale[0], row_scales + step % 2 * 16 * kRowBytes + step / 2 * 8);
    load_words(scale[1], row_scales + (step % 2 * 16 + 8) * kRowBytes + step / 2 * 8);
    if (step < kSteps - 1) {
      ptx::wait_mma<1>();
    } else {
      ptx::wait_mma<0>();
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) ptx::pin(own[e]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = x[0][step % 2][i];
        const float factor = __uint_as_float(scale[i / 2][e]);
        score = step < 2 && e == 0 ? own[e][i] * factor : fmaf(own[e][i], factor, score);
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
