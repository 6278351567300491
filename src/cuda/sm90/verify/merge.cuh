// Outputs of rows as sums of what warpgroups have in shared memory and, of several pieces, blocks in global memory.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// What the outputs of a row are made with: x = sum * scale + mean * share.
struct RowFinish {
  float scale, share;
};

/// Of a row with maximum `max` and `sum` of weights; all lanes of a warp, of which the first writes its LSE.
template <class Config>
__device__ __forceinline__ RowFinish finish_row(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                                RowPlace place, float max, float sum, float shift) {
  const bool empty = sum == 0.0F;
  float lse = empty ? -INFINITY : max * kLn2 + logf(sum) + shift;
  RowFinish row{empty ? 0.0F : __fdividef(1.0F, sum), empty ? 0.0F : 1.0F};
  if (p.v.global != nullptr) row.scale *= p.v.global[piece.head];
  if (p.sinks != nullptr) {
    const float sink = p.sinks[place.head], top = fmaxf(lse, sink);
    const float total = empty ? sink : top + logf(expf(lse - top) + expf(sink - top));
    if (!empty) row.share = expf(lse - total);
    row.scale *= row.share;
    lse = total;
  }
  if (p.lse != nullptr && threadIdx.x % 32 == 0) {
    const std::int64_t at =
        p.cu_seqlens_q != nullptr
            ? place.head * p.lse_rows + s.first_row + place.token
            : (static_cast<std::int64_t>(piece.b) * p.q_heads + place.head) * p.lse_rows + place.token;
    p.lse[at] = lse;
  }
  return row;
}

/// Four channels of a row, see value_channel.
template <class Config>
__device__ __forceinline__ void store_quad(const DecodeParams& p, const Sequence& s, const Piece& piece, RowPlace place,
                                           int quad, float4 x, RowFinish row) {
  float v[4] = {x.x * row.scale, x.y * row.scale, x.z * row.scale, x.w * row.scale};
  const float* mean = p.sequences == nullptr ? nullptr : p.sequences[piece.b].v_mean;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row.share == 0.0F) v[i] = 0.0F;
    const int channel = value_channel<Config::kValue>(quad, i);
    if (mean != nullptr) v[i] = fmaf(mean[piece.head * Config::kD + channel], row.share, v[i]);
  }
  const std::int64_t at = (p.cu_seqlens_q != nullptr ? (s.first_row + place.token) * p.out_row
                                                     : piece.b * p.out_batch + place.token * p.out_row) +
                          place.head * p.out_head;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t to = at + value_channel<Config::kValue>(quad, i);
    if (p.out_type == 0) static_cast<float*>(p.out)[to] = v[i];
    if (p.out_type == 1) static_cast<__nv_bfloat16*>(p.out)[to] = __float2bfloat16_rn(v[i]);
    if (p.out_type == 2) static_cast<__half*>(p.out)[to] = __float2half_rn(v[i]);
  }
}

/// Maximum and sum of a row over the warpgroups of the block, and the weights of these.
template <class Config>
__device__ __forceinline__ float2 weigh_groups(const Exchange<Config>& exchange, int row,
                                               float (&weights)[Config::kGroups]) {
  float max = -FLT_MAX, sum = 0.0F;
#pragma unroll
  for (int k = 0; k < Config::kGroups; ++k) max = fmaxf(max, exchange.max[4 * k * Config::kRows + row]);
#pragma unroll
  for (int k = 0; k < Config::kGroups; ++k) {
    weights[k] = weight(exchange.max[4 * k * Config::kRows + row], max);
#pragma unroll
    for (int w = 0; w < 4; ++w) sum = fmaf(exchange.sum[(4 * k + w) * Config::kRows + row], weights[k], sum);
  }
  return make_float2(max, sum);
}

/// The same over the pieces of the output, of several rows whose first states are at `states`; all lanes of a warp.
template <class Config, int kCount>
__device__ __forceinline__ void weigh_pieces(const float2* const (&states)[kCount], std::int32_t count,
                                             float2 (&all)[kCount]) {
#pragma unroll
  for (float2& x : all) x = make_float2(-FLT_MAX, 0.0F);
#pragma unroll 1
  for (std::int32_t k = threadIdx.x % 32; k < count; k += 32) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float2 state = __ldcg(states[j] + k * Config::kRows);
      const float max = fmaxf(all[j].x, state.x);
      all[j] = make_float2(max, fmaf(all[j].y, weight(all[j].x, max), state.y * weight(state.x, max)));
    }
  }
  float max[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) max[j] = all[j].x;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
#pragma unroll
    for (float& m : max) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFU, m, i));
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) all[j] = make_float2(max[j], all[j].y * weight(all[j].x, max[j]));
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
#pragma unroll
    for (float2& x : all) x.y += __shfl_xor_sync(0xFFFFFFFFU, x.y, i);
  }
}

__device__ __forceinline__ void add_weighted(float4& sum, float4 x, float w) {
  sum.x = fmaf(x.x, w, sum.x), sum.y = fmaf(x.y, w, sum.y);
  sum.z = fmaf(x.z, w, sum.z), sum.w = fmaf(x.w, w, sum.w);
}

/// Merges what the warpgroups of the block have put into shared memory and, in the last block of the output, the
/// pieces: a warp a row at a time, a lane four channels of 128, of 64 both halves of the warp the same.
template <class Config>
__device__ __forceinline__ void merge_groups(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                             const Exchange<Config>& exchange) {
  constexpr int kQuads = Config::kD / 4, kOwn = kQuads > 32 ? kQuads / 32 : 1;  // of a lane: every 32nd
  const std::int32_t row0 = piece.row_block * Config::kRows, rows = min(Config::kRows, s.sq * p.group - row0);
  const int warp = team_warp<Config>(), quad = static_cast<int>(threadIdx.x % 32) % kQuads;
  const auto store = [&](int row, float2 all, const float4(&x)[kOwn]) {
    const RowPlace place = place_row(p, piece.head, row0 + row);
    const RowFinish finish = finish_row<Config>(p, s, piece, place, all.x, all.y, lse_shift(p, exchange, row));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) store_quad<Config>(p, s, piece, place, quad + 32 * i, x[i], finish);
  };
  const std::int64_t at = static_cast<std::int64_t>(piece.slot) * Config::kRows;
#pragma unroll 1
  for (int row = warp; row < rows; row += Config::kWarps) {
    float weights[Config::kGroups];
    const float2 all = weigh_groups<Config>(exchange, row, weights);
    float4 x[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      x[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
      for (int k = 0; k < Config::kGroups; ++k) add_weighted(x[i], *exchange.out(k, row, quad + 32 * i), weights[k]);
    }
    if (piece.count == 1) {
      store(row, all, x);
    } else {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        reinterpret_cast<float4*>(p.partial_out)[(at + row) * kQuads + quad + 32 * i] = x[i];
      }
      if (quad == 0) p.partial_state[at + row] = all;
    }
  }
  if (piece.count > 1 && last_of_output<Config>(p, piece)) {
    // Several rows at a time, so that their loads are on the way together.
    constexpr int kRowsOfWarp = (Config::kRows + Config::kWarps - 1) / Config::kWarps;
    // Where registers are scarce, four would change those of the walk.
    constexpr bool kFew =
        Config::kRankOne || kScalesSums<Config> || (Config::kRows == 64 && Config::kKeyInfo.bits == 8);
    constexpr int kMost = kFew || kOwn > 1 ? 2 : 4;
    constexpr int kTogether = kRowsOfWarp < kMost ? kRowsOfWarp : kMost,
                  kPieces = kTogether == 1 || Config::kCopies ? 4 : 2;
    const std::int64_t first = static_cast<std::int64_t>(piece.slot - piece.index) * Config::kRows;
#pragma unroll 1
    for (int row = warp; row < rows; row += kTogether * Config::kWarps) {
      const float2* states[kTogether];
      const float4* partials[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const std::int64_t from = first + min(row + j * Config::kWarps, rows - 1);
        states[j] = p.partial_state + from;
        partials[j] = reinterpret_cast<const float4*>(p.partial_out) + from * kQuads + quad;
      }
      float2 all[kTogether];
      weigh_pieces<Config>(states, piece.count, all);
      float4 x[kTogether][kOwn];
#pragma unroll
      for (auto& row_sums : x) {
#pragma unroll
        for (float4& sum : row_sums) sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      }
#pragma unroll kPieces
      for (std::int32_t k = 0; k < piece.count; ++k) {
        const std::int64_t step = static_cast<std::int64_t>(k) * Config::kRows;
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
#pragma unroll
          for (int q = 0; q < kOwn; ++q) {
            add_weighted(x[j][q], __ldcg(partials[j] + step * kQuads + 32 * q),
                         weight(__ldcg(states[j] + step).x, all[j].x));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (row + j * Config::kWarps < rows) store(row + j * Config::kWarps, all[j], x[j]);
      }
    }
  }
  sync_team<Config>();
}

}  // namespace mpfa::sm90
