// Query rows of a warp and the online softmax over its tiles.
#pragma once

#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "cuda/sm90/decode/fp4/products.cuh"
#include "cuda/sm90/decode/fp4/round_query.cuh"
#include "cuda/sm90/decode/fp4/scales.cuh"
#include "cuda/sm90/decode/fp4/schedule.cuh"
#include "cuda/sm90/decode/fp4/tile.cuh"

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

/// The thread's channels of a query row, 8 of every chunk of 32: 8 side by side for 4-bit keys, twice 4 for 8-bit keys
/// and four times 2 for 16-bit keys, as a thread has them of a row of K.
template <class Config>
struct RawQuery {
  std::uint32_t q[Config::kChunks][4];
};

/// Starts the loads of row tile n of the piece's block.
template <class Config>
__device__ __forceinline__ RawQuery<Config> load_query(const DecodeParams& p, const Work& work, int n) {
  constexpr int kRun = 32 / Config::kKeyInfo.bits;  // channels side by side
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int32_t r = work.piece.row_block * Config::kRows + n * 8 + g;
  const RowPlace place = place_row(p, work.piece.head, min(r, work.sequence.sq * p.group - 1));
  const auto* from =
      static_cast<const std::uint16_t*>(p.q) + q_offset(p, work.sequence, work.piece.b, place) + t * kRun;
  RawQuery<Config> raw;
#pragma unroll
  for (int c = 0; c < Config::kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < 8; i += kRun) {
      load_bytes<kRun * 2>(reinterpret_cast<const std::uint8_t*>(from + c * 32 + i * 4), &raw.q[c][i / 2]);
    }
  }
  return raw;
}

/// Pairs of a row become f16 in the order of K's registers; returns what these have to be multiplied by. A row that the
/// recipe keeps in 16 bits is scaled by a power of two so that its largest element is in [2^14, 2^15): f16 then holds
/// every bf16 and f16 element exactly down to 2^-31 of the largest.
template <class Config>
__device__ __forceinline__ float halve_query(const DecodeParams& p, std::uint32_t (&q)[Config::kChunks][4],
                                             std::uint32_t largest_pair, bool bf16) {
  const float2 pair = unpack_q(largest_pair, bf16);
  float largest = fmaxf(pair.x, pair.y);
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
  // Exponent field of the largest element; its inverse stays a normal number.
  const int field = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 24), 254);
  const float lift = __uint_as_float(static_cast<std::uint32_t>(min(254 - field + 14, 254)) << 23);
  float unit = 1.0F / lift;
#pragma unroll
  for (int c = 0; c < Config::kChunks; ++c) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack_q(q[c][i], bf16);
      v[2 * i] = two.x * lift, v[2 * i + 1] = two.y * lift;
      if constexpr (Config::kKey == Operand::e4m3 || Config::kKey == Operand::int8) {
        if (p.round_q != 0) {
          const RowRounding<Config::kKey> rounding(largest);
          const float2 rounded = rounding(two);
          v[2 * i] = rounded.x, v[2 * i + 1] = rounded.y;
          unit = rounding.factor;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Words of eight codes become the pairs (i, i + 4).
      const bool apart = Config::kKeyInfo.bits == 4;
      q[c][i] = half2_bits(__floats2half2_rn(v[apart ? i : 2 * i], v[apart ? i + 4 : 2 * i + 1]));
    }
  }
  return unit;
}

/// Row tile n of the piece's block as B operands to shared memory, with the factors of its rows; one warp. For keys in
/// bf16 q is bf16 and stays as it is.
template <class Config>
__device__ __forceinline__ void store_query(const DecodeParams& p, const Work& work, int n, const RawQuery<Config>& raw,
                                            uint4* queries, float* factors) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::int32_t row = work.piece.row_block * Config::kRows + n * 8 + g, rows = work.sequence.sq * p.group;
  std::uint32_t q[Config::kChunks][4];
#pragma unroll
  for (int c = 0; c < Config::kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) q[c][i] = row < rows ? raw.q[c][i] : 0U;
  }
  bool bf16 = p.q_bf16 || p.round_q_bf16;
  if constexpr (Config::kRankOne) {
    if (p.round_q != 0) {
      const float* mean = p.centre_q == 0 || p.sequences == nullptr ? nullptr : p.sequences[work.piece.b].q_mean;
      if (mean != nullptr) mean += place_row(p, work.piece.head, min(row, rows - 1)).head * Config::kD + t * 8;
#pragma unroll
      for (int c = 0; c < Config::kChunks; ++c) {
        round_nvfp4(q[c], p.q_bf16 != 0, mean == nullptr ? nullptr : mean + c * 32);
      }
      bf16 = true;
    }
  }
  std::uint32_t largest_pair = 0;
#pragma unroll
  for (int i = 0; i < Config::kChunks * 4; ++i) {
    std::uint32_t& two = q[i / 4][i % 4];
    if (p.round_q_bf16) {
      const float2 v = unpack_q(two, false);
      const __nv_bfloat162 rounded = __floats2bfloat162_rn(v.x, v.y);
      two = *reinterpret_cast<const std::uint32_t*>(&rounded);
    }
    largest_pair = __vmaxu2(largest_pair, two & 0x7FFF7FFFU);  // magnitudes compare like integers
  }
  float unit = 1.0F;
  if constexpr (Config::kKey != Operand::bf16) unit = halve_query<Config>(p, q, largest_pair, bf16);
#pragma unroll
  for (int c = 0; c < Config::kChunks; ++c) {
    queries[(n * Config::kChunks + c) * 32 + lane] = make_uint4(q[c][0], q[c][1], q[c][2], q[c][3]);
  }
  const float global = p.k.global == nullptr ? 1.0F : p.k.global[work.piece.head];
  if (t == 0) factors[n * 8 + g] = p.scale * kLog2E * Config::kKeyUnit * global * unit;
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

/// softcap * tanh(logit / softcap) of true logits: `shift` [rows] is what centring K took out. x stays in units of the
/// factor.
template <class Config>
__device__ __forceinline__ void cap_scores(const DecodeParams& p, const Factors<Config>& factors, const float* shift,
                                           Scores<Config>& x) {
  if (p.softcap == 0.0F) return;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < Config::kRowTiles * 8; ++i) {
    const int n = i / 8, m = i / 4 % 2, e = i % 4, j = i % 2;
    const float logit = fmaf(x[n][m][e], factors[n][j] * kLn2, shift[n * 8 + 2 * t + j]);
    // tanh(y) = 1 - 2 / (exp(2 y) + 1)
    const float tanh = 1.0F - __fdividef(2.0F, ptx::exp2_fast(logit * (2.0F * kLog2E / p.softcap)) + 1.0F);
    x[n][m][e] = __fdividef(p.softcap * kLog2E * tanh, factors[n][j]);
  }
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
      const std::int32_t position = static_cast<std::int32_t>(divide(row, p.group_div)) + s.length - s.sq;
      std::int32_t begin = 0, end = s.length;
      if (p.causal) end = min(end, position + 1);
      if (p.window_right >= 0) end = min(end, position + p.window_right + 1);
      if (p.window_left >= 0) begin = max(position - p.window_left, 0);
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
