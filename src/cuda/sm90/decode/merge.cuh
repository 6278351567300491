// Sums of parts of an output: what the warps of a block have, in shared memory, and how a row is written.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/sm90/decode/scales.cuh"
#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/team.cuh"

namespace mpfa::sm90 {

/// Shared memory of a team at the end of a piece.
template <class Config>
struct Exchange {
  static constexpr int kRows = Config::kRows;
  std::uint8_t* ring;   // of warp w from w * kWarpBytes on
  float* max;           // [warp][row]
  float* sum;           // [warp][row]
  float* row_shift;     // [kRows] logit that centring K took out
  float* factors;       // [kRows] see Factors
  uint4* queries;       // [row tile][chunk][lane] B operands
  RowBias* row_bias;    // [kRows]
  std::int32_t* taken;  // chunk that thread 0 drew for after this one
  Work* work;           // [2] this piece and the next one
  Schedule* schedule;

  __device__ explicit Exchange(std::uint8_t* shared) : ring(shared) {
    queries = reinterpret_cast<uint4*>(shared + Config::kRingBytes);
    row_bias = reinterpret_cast<RowBias*>(shared + Config::kRingBytes + Config::kQueryBytes);
    max = reinterpret_cast<float*>(row_bias + kRows);
    sum = max + Config::kWarps * kRows;
    row_shift = sum + Config::kWarps * kRows;
    factors = row_shift + kRows;
    taken = reinterpret_cast<std::int32_t*>(factors + kRows);
    work = reinterpret_cast<Work*>(taken + 4);
    schedule = reinterpret_cast<Schedule*>(work + 2);
  }
  /// A quad of channels (see value_channel) of a row as a warp has them; the order of quads avoids bank conflicts.
  __device__ float4* out(int warp, int row, int quad) const {
    return reinterpret_cast<float4*>(ring + warp * Config::kWarpBytes + Config::kOutOffset) + row * (Config::kD / 4) +
           (quad ^ (row & 6));
  }
};

/// Logits that centring K took out of the rows, to exchange.row_shift.
template <class Config>
__device__ __forceinline__ void load_shifts(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                            const Exchange<Config>& exchange) {
  if (p.sequences == nullptr && p.softcap == 0.0F) return;
  const std::int32_t row0 = piece.row_block * Config::kRows, last = s.sq * p.group - 1;
  for (int row = team_warp<Config>(); row < Config::kRows; row += Config::kWarps) {
    const float shift = mean_logit(p, s, piece, place_row(p, piece.head, min(row0 + row, last)), head_dim<Config>(p));
    if (threadIdx.x % 32 == 0) exchange.row_shift[row] = shift;
  }
}

/// What is left to add to the LSE: with a softcap the scores were true logits already.
template <class Config>
__device__ __forceinline__ float lse_shift(const DecodeParams& p, const Exchange<Config>& exchange, int row) {
  return p.sequences == nullptr || p.softcap > 0.0F ? 0.0F : exchange.row_shift[row];
}

__device__ __forceinline__ float weight(float max, float top) {
  return ptx::exp2_fast(max - top);
}

/// Part of a row's output, relative to its maximum.
struct Partial {
  float4 out;
  float max, sum;
};

/// Normalises the channels of a quad of a row and writes them; quad 0 writes the LSE too.
template <class Config>
__device__ __forceinline__ void store_row(const DecodeParams& p, const Sequence& s, const Piece& piece, std::int32_t r,
                                          int quad, const Partial& x, float shift) {
  const RowPlace place = place_row(p, piece.head, r);
  const bool empty = x.sum == 0.0F;
  float lse = -INFINITY;
  if (!empty && (p.sinks != nullptr || quad == 0)) lse = x.max * kLn2 + logf(x.sum) + shift;
  float scale = empty ? 0.0F : __fdividef(1.0F, x.sum);
  const float* mean = p.sequences == nullptr ? nullptr : p.sequences[piece.b].v_mean;
  if (p.v.global != nullptr) scale *= p.v.global[piece.head];
  float share = 1.0F;
  if (p.sinks != nullptr) {
    const float sink = p.sinks[place.head];
    if (empty) {
      lse = sink;
    } else {
      const float top = fmaxf(lse, sink);
      const float total = top + logf(expf(lse - top) + expf(sink - top));
      share = expf(lse - total);
      lse = total;
    }
  }
  const int channels = head_dim<Config>(p);
  int channel[4];
  bool there[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    channel[i] = value_channel<Config::kValue>(quad, i);
    there[i] = !Config::kGeneral || channel[i] < channels;
  }
  float v[4] = {x.out.x * scale, x.out.y * scale, x.out.z * scale, x.out.w * scale};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (empty) {
      v[i] = 0.0F;
    } else {
      if (mean != nullptr && there[i]) v[i] += mean[piece.head * channels + channel[i]];
      v[i] *= share;
    }
  }
  const std::int64_t row = p.cu_seqlens_q != nullptr ? (s.first_row + place.token) * p.out_row
                                                     : piece.b * p.out_batch + place.token * p.out_row;
  const std::int64_t at = row + place.head * p.out_head;
  if (p.out_type == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (there[i]) static_cast<float*>(p.out)[at + channel[i]] = v[i];
    }
  } else if (p.out_type == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (there[i]) static_cast<__nv_bfloat16*>(p.out)[at + channel[i]] = __float2bfloat16_rn(v[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (there[i]) static_cast<__half*>(p.out)[at + channel[i]] = __float2half_rn(v[i]);
    }
  }
  if (quad == 0 && p.lse != nullptr) {
    const std::int64_t lse_at =
        p.cu_seqlens_q != nullptr
            ? place.head * p.lse_rows + s.first_row + place.token
            : (static_cast<std::int64_t>(piece.b) * p.q_heads + place.head) * p.lse_rows + place.token;
    p.lse[lse_at] = lse;
  }
}

// Lanes l, l + kPlaceLanes and so on share a place of the output and take every kShares-th source.

/// The thread's first place; the next one is kThreads / kShares further, which is alike in a warp.
template <class Config>
__device__ __forceinline__ int first_place() {
  return team_warp<Config>() * Config::kPlaceLanes + static_cast<int>(threadIdx.x % Config::kPlaceLanes);
}
/// The lane's first source.
template <class Config>
__device__ __forceinline__ int first_source() {
  return static_cast<int>(threadIdx.x % 32 / Config::kPlaceLanes);
}

__device__ __forceinline__ Partial no_keys() {
  return {make_float4(0.0F, 0.0F, 0.0F, 0.0F), -FLT_MAX, 0.0F};
}

/// Sum of the sources load(0) to load(kCount - 1).
template <int kCount, class Load>
__device__ __forceinline__ Partial gather(Load&& load) {
  Partial part[kCount];
  Partial x = no_keys();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    part[k] = load(k);
    x.max = fmaxf(x.max, part[k].max);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float w = weight(part[k].max, x.max);
    x.out.x = fmaf(part[k].out.x, w, x.out.x), x.out.y = fmaf(part[k].out.y, w, x.out.y);
    x.out.z = fmaf(part[k].out.z, w, x.out.z), x.out.w = fmaf(part[k].out.w, w, x.out.w);
    x.sum = fmaf(part[k].sum, w, x.sum);
  }
  return x;
}

/// Adds what the lanes of a place have; all of them get the sum.
template <class Config>
__device__ __forceinline__ void add_shares(Partial& x) {
  if constexpr (Config::kShares == 1) return;
  constexpr unsigned kAll = 0xFFFFFFFFU;
  float top = fmaxf(x.max, __shfl_xor_sync(kAll, x.max, 8));
  top = fmaxf(top, __shfl_xor_sync(kAll, top, 16));
  const float w = weight(x.max, top);
  x.max = top;
  float* const sums[5] = {&x.out.x, &x.out.y, &x.out.z, &x.out.w, &x.sum};
#pragma unroll
  for (float* sum : sums) {
    *sum *= w;
    *sum += __shfl_xor_sync(kAll, *sum, 8);
    *sum += __shfl_xor_sync(kAll, *sum, 16);
  }
}

/// What each warp has, to shared memory: maxima, sums and outputs of (row, quad), relative to the warp's maxima.
template <class Config>
__device__ __forceinline__ void put_warp(const Exchange<Config>& exchange, State<Config>& state, bool bad_page,
                                         std::int32_t rows) {
  const int warp = team_warp<Config>(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool bad = __any_sync(0xFFFFFFFFU, bad_page);
  const float unit = value_unit<Config>(state);
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 4; i < 32; i *= 2) state.sum[n][j] += __shfl_xor_sync(0xFFFFFFFFU, state.sum[n][j], i);
      if (bad) state.sum[n][j] = __int_as_float(0x7FC00000);  // a page id outside the pool: NaN, not a wrong number
      const int row = n * 8 + 2 * t + j;
      if (g == 0) {
        exchange.max[warp * Config::kRows + row] = state.max[n][j];
        exchange.sum[warp * Config::kRows + row] = state.sum[n][j];
      }
      if (row >= rows) continue;
#pragma unroll
      for (int c = 0; c < Config::kChunks; ++c) {
        const auto& o = state.out[n][c];
        *exchange.out(warp, row, c * 8 + g) =
            make_float4(o[0][j] * unit, o[0][2 + j] * unit, o[1][j] * unit, o[1][2 + j] * unit);
      }
    }
  }
}

/// The lane's share of the warps of a place.
template <class Config>
__device__ __forceinline__ Partial sum_warps(const Exchange<Config>& exchange, int row, int quad) {
  return gather<(Config::kWarps + Config::kShares - 1) / Config::kShares>([&](int k) -> Partial {
    const int w = first_source<Config>() + Config::kShares * k;
    if (w >= Config::kWarps) return no_keys();
    return {*exchange.out(w, row, quad), exchange.max[w * Config::kRows + row], exchange.sum[w * Config::kRows + row]};
  });
}

}  // namespace mpfa::sm90
