// Tokens that a recipe keeps in bf16: [0, sink) and those from the packed limit on. At the end of a piece every warp
// adds some of them to what it has of the packed ones, so that they need no merge of their own. Few tokens, so plain
// FMAs.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cuda/sm90/decode/mask.cuh"
#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/softmax.cuh"

namespace mpfa::sm90 {

/// The bf16 tokens that rows of a sequence read, and the part of a warp: kLanes lanes share a token.
template <class Config>
struct WideTokens {
  static constexpr int kChannels = 16, kLanes = Config::kD / kChannels, kTokens = 32 / kLanes;
  /// Whether the lane's channels are among those of the head.
  [[nodiscard]] static __device__ bool has_channels(const DecodeParams& p) {
    return !Config::kGeneral || static_cast<std::int32_t>(threadIdx.x % kLanes * kChannels) < p.head_dim;
  }
  SequenceView view;
  std::int32_t sink, first, count, begin, step;

  __device__ WideTokens(const DecodeParams& p, const Sequence& s, const Piece& piece) : view(p.sequences[piece.b]) {
    const std::int32_t first_row_end = row_keys(p, s, 0).end;  // of all rows it reads the fewest packed keys
    sink = s.sink;
    first = max(packed_end(p, s, first_row_end), sink);
    count = sink + max(s.length - first, 0);
    begin = (piece.index * Config::kWarps + team_warp<Config>()) * kTokens;
    step = piece.count * Config::kWarps * kTokens;
  }
  [[nodiscard]] __device__ std::int32_t key(std::int32_t i) const { return i < sink ? i : first + i - sink; }
  /// The lane's channels of K or V of a key; null: the caller did not give the token.
  [[nodiscard]] __device__ const uint4* row(const DecodeParams& p, std::int32_t head, std::int32_t key, bool k) const {
    const std::int64_t at = key < sink ? key : key - view.wide_begin;
    const std::uint16_t* x = key < sink ? (k ? view.sink_k : view.sink_v) : (k ? view.wide_k : view.wide_v);
    if (x == nullptr || at < 0) return nullptr;
    return reinterpret_cast<const uint4*>(x + (at * p.kv_heads + head) * head_dim<Config>(p) +
                                          threadIdx.x % kLanes * kChannels);
  }
};

/// Fetches the tokens of the warp to the second-level cache.
template <class Config>
__device__ __noinline__ void prefetch_wide(const DecodeParams& p, const Sequence& s, const Piece& piece) {
  const WideTokens<Config> tokens(p, s, piece);
  const std::int32_t own = static_cast<std::int32_t>(threadIdx.x % 32) / WideTokens<Config>::kLanes;
  for (std::int32_t i = tokens.begin + own; i < tokens.count; i += tokens.step) {
    for (const bool k : {true, false}) {
      const uint4* row = tokens.row(p, piece.head, tokens.key(i), k);
      if (row != nullptr && tokens.has_channels(p)) ptx::prefetch(row);
    }
  }
}

/// 16 bf16 or f16 as floats; null: zeros.
__device__ __forceinline__ void load_channels(const uint4* from, bool bf16, float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 four = from == nullptr ? make_uint4(0, 0, 0, 0) : __ldg(from + i);
    const std::uint32_t pairs[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = unpack_q(pairs[j], bf16);
      x[8 * i + 2 * j] = two.x, x[8 * i + 2 * j + 1] = two.y;
    }
  }
}

/// Adds the warp's bf16 tokens to its part in shared memory (see put_warp).
template <class Config>
__device__ __noinline__ void add_wide(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                      std::uint8_t* shared, std::int32_t rows) {
  using Tokens = WideTokens<Config>;
  constexpr int kChannels = Tokens::kChannels;
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const Exchange<Config> exchange(shared);
  const Tokens tokens(p, s, piece);
  if (tokens.begin >= tokens.count) return;
  __syncwarp();
  const int warp = team_warp<Config>(), lane = threadIdx.x % 32, part = lane % Tokens::kLanes;
  const bool there = Tokens::has_channels(p);
  const float k_factor = p.scale * kLog2E;
  const float v_factor = p.v.global == nullptr ? 1.0F : 1.0F / p.v.global[piece.head];
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const std::int32_t r = piece.row_block * Config::kRows + row;
    const Keys visible = row_keys(p, s, r);
    const std::int32_t limit = packed_end(p, s, visible.end);
    float q[kChannels], out[kChannels], max = -FLT_MAX, sum = 0.0F;
    const auto* q_row = reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(p.q) +
                                                       q_offset(p, s, piece.b, place_row(p, piece.head, r)));
    load_channels(there ? q_row + 2 * part : nullptr, p.q_bf16, q);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (p.round_q_bf16) q[c] = __bfloat162float(__float2bfloat16_rn(q[c]));
      out[c] = 0.0F;
    }
#pragma unroll 1
    for (std::int32_t i0 = tokens.begin; i0 < tokens.count; i0 += tokens.step) {
      const std::int32_t i = i0 + lane / Tokens::kLanes, key = tokens.key(i);
      const bool read =
          i < tokens.count && key >= visible.begin && key < visible.end && (key < tokens.sink || key >= limit);
      const uint4* k = read ? tokens.row(p, piece.head, key, true) : nullptr;
      const uint4* v = read ? tokens.row(p, piece.head, key, false) : nullptr;
      const bool given = k != nullptr && v != nullptr;
      float x[kChannels];
      float logit = 0.0F;
      if (given) {
        load_channels(there ? k : nullptr, true, x);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) logit = fmaf(q[c], x[c], logit);
      }
#pragma unroll
      for (int l = 1; l < Tokens::kLanes; l *= 2) logit += __shfl_xor_sync(kAll, logit, l);
      if (read && !given) sum = __int_as_float(0x7FC00000);  // a token without memory: NaN, not a wrong number
      if (!given) continue;
      logit *= k_factor;
      if (p.softcap > 0.0F) {
        logit = p.softcap * kLog2E * tanhf((logit * kLn2 + exchange.row_shift[row]) / p.softcap);
      }
      if constexpr (Config::kGeneral) logit = biased_logit(p, exchange.row_bias[row], key, logit);
      if (logit == -INFINITY) continue;  // hidden by the mask: its V may be anything
      const float top = fmaxf(max, logit), keep = weight(max, top), probability = weight(logit, top);
      load_channels(there ? v : nullptr, true, x);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) out[c] = fmaf(x[c], probability, out[c] * keep);
      sum = fmaf(sum, keep, probability);
      max = top;
    }
    // Groups of lanes, and what the warp had.
    float top = fmaxf(max, exchange.max[warp * Config::kRows + row]);
#pragma unroll
    for (int l = Tokens::kLanes; l < 32; l *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, l));
    const float w = weight(max, top);
    sum *= w;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) out[c] *= w * v_factor;
#pragma unroll
    for (int l = Tokens::kLanes; l < 32; l *= 2) {
      sum += __shfl_xor_sync(kAll, sum, l);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) out[c] += __shfl_xor_sync(kAll, out[c], l);
    }
    const float before = weight(exchange.max[warp * Config::kRows + row], top);
    if (lane < Tokens::kLanes) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const int2 place = channel_place<Config::kValue>(part * kChannels + c);
        float& o = reinterpret_cast<float*>(exchange.out(warp, row, place.x))[place.y];
        o = fmaf(o, before, out[c]);
      }
    }
    __syncwarp();
    if (lane == 0) {
      exchange.sum[warp * Config::kRows + row] = fmaf(exchange.sum[warp * Config::kRows + row], before, sum);
      exchange.max[warp * Config::kRows + row] = top;
    }
    __syncwarp();
  }
}

}  // namespace mpfa::sm90
