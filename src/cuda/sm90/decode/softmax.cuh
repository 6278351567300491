// Query rows of a warp and the online softmax over its tiles.
#pragma once

#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/decode/round_query.cuh"
#include "cuda/sm90/decode/scales.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

// P is relative to a maximum that is only raised when a score exceeds it by more than this (log2), so that most tiles
// need no rescaling; P stays an f16 up to 2^4.
inline constexpr float kLazy = 4.0F;
inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

/// Row r of a KV head's rows: token r / group, query head head * group + r % group.
struct RowPlace {
  std::int32_t token, head;
};
__device__ __forceinline__ RowPlace place_row(const DecodeParams& p, std::int32_t kv_head, std::int32_t r) {
  const auto token = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(r), p.group_div));
  return {token, kv_head * p.group + r - token * p.group};
}

/// Row of the block in column 2 t + j of row tile n.
__device__ __forceinline__ int column_row(int n, int j) {
  return n * 8 + 2 * static_cast<int>(threadIdx.x % 4) + j;
}

/// A query row as ALiBi and the mask tensor see it; in shared memory.
struct RowBias {
  const std::uint8_t* mask;  // of the row's first key
  float slope;               // per token, in the log2 domain
  std::int32_t position;
};

__device__ __forceinline__ std::int64_t q_offset(const DecodeParams& p, const Sequence& s, std::int32_t b, RowPlace r) {
  const std::int64_t row =
      p.cu_seqlens_q != nullptr ? (s.first_row + r.token) * p.q_row : b * p.q_batch + r.token * p.q_row;
  return row + r.head * p.q_head;
}

/// Dot product of a query row with the sequence's mean key, over the lanes of a warp.
__device__ __forceinline__ float mean_logit(const DecodeParams& p, const Sequence& s, const Piece& piece, RowPlace r,
                                            int d) {
  const float* mean = p.sequences == nullptr ? nullptr : p.sequences[piece.b].k_mean;
  if (mean == nullptr) return 0.0F;
  const std::int64_t at = q_offset(p, s, piece.b, r);
  float sum = 0.0F;
  // The true q, before any rounding to the recipe's format.
  for (int c = threadIdx.x % 32; c < d; c += 32) {
    const float q = p.q_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.q)[at + c])
                             : __half2float(static_cast<const __half*>(p.q)[at + c]);
    sum = fmaf(q, mean[piece.head * d + c], sum);
  }
#pragma unroll
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
  return sum * p.scale;
}

template <class Config>
__device__ __forceinline__ void clear_state(State<Config>& state) {
  constexpr int kChunks = Config::kChunks;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) state.out[n][i / 8][i / 4 % 2][i % 4] = 0.0F;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      state.max[n][j] = -FLT_MAX;  // no key seen; finite, so that differences are numbers
      state.sum[n][j] = 0.0F;
    }
  }
  clear_exponent<Config>(state);
}

template <class Config>
__device__ __forceinline__ void mask_scores(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                            std::int32_t first, Scores<Config>& x) {
  const std::uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t row = row0 + n * 8 + 2 * t + j;
      auto [begin, end] = row_keys(p, s, row);
      if (p.wide != 0) begin = max(begin, s.sink), end = packed_end(p, s, end);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int32_t key = first + i * 8 + static_cast<std::int32_t>(g);
        if (key < begin || key >= end) x[n][i / 2][i % 2 * 2 + j] = -INFINITY;
      }
    }
  }
}

/// Raises the maxima to those of the tile and scales sums and outputs to them.
template <class Config>
__device__ __forceinline__ void raise_maxima(const Factors<Config>& factors, const Scores<Config>& x,
                                             State<Config>& state) {
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float largest = fmaxf(fmaxf(x[n][0][j], x[n][0][2 + j]), fmaxf(x[n][1][j], x[n][1][2 + j]));
#pragma unroll
      for (int i = 4; i < 32; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, i));
      const float raised = fmaxf(state.max[n][j], largest * factors[n][j]);
      const float keep = ptx::exp2_fast(state.max[n][j] - raised);
      state.max[n][j] = raised;
      state.sum[n][j] *= keep;
#pragma unroll
      for (int i = 0; i < Config::kChunks * 4; ++i) state.out[n][i / 4][i / 2 % 2][i % 2 * 2 + j] *= keep;
    }
  }
}

template <class Config>
__device__ __forceinline__ std::uint32_t pack_probabilities(float p0, float p1) {
  if constexpr (Config::kValue == Operand::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(p0, p1);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return half2_bits(__floats2half2_rn(p0, p1));
}

/// P of a tile as pairs (columns 2 t, 2 t + 1) of 16 bits, times V's scales if those are of rows, and their sums.
template <class Config>
__device__ __forceinline__ void add_probabilities(const DecodeParams& params, const Factors<Config>& factors,
                                                  const Scores<Config>& x, std::uint32_t value_scales,
                                                  State<Config>& state, std::uint32_t (&p)[Config::kRowTiles][2][2]) {
  bool codes = false;  // P is rounded to e4m3, whose largest is that of the maximum
  if constexpr (Config::kValue == Operand::e4m3) codes = params.p_scale > 0.0F;
  const float lazy = codes ? 0.0F : kLazy;
  bool raise = false;
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float largest = fmaxf(fmaxf(x[n][0][j], x[n][0][2 + j]), fmaxf(x[n][1][j], x[n][1][2 + j]));
      raise = raise || fmaf(largest, factors[n][j], -state.max[n][j]) > lazy;
    }
  }
  if (__any_sync(0xFFFFFFFFU, raise)) raise_maxima<Config>(factors, x, state);
  float scale[4] = {1.0F, 1.0F, 1.0F, 1.0F};
  if constexpr (Config::kValueScale == ScaleKind::row) load_row_scales(scale, value_scales);
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &x[n][i / 2][i % 2 * 2];
      float2 both = {ptx::exp2_fast(fmaf(pair[0], factors[n][0], -state.max[n][0])),
                     ptx::exp2_fast(fmaf(pair[1], factors[n][1], -state.max[n][1]))};
      float2 counted = both;
      if (codes) {
        both = round_e4m3(both.x * params.p_scale, both.y * params.p_scale);
        if (params.sum_codes != 0) counted = {both.x * params.p_unit, both.y * params.p_unit};
      }
      state.sum[n][0] += counted.x;
      state.sum[n][1] += counted.y;
      p[n][i / 2][i % 2] = pack_probabilities<Config>(both.x * scale[i], both.y * scale[i]);
    }
  }
}

}  // namespace mpfa::sm90
