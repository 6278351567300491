// v_mean=page: what was subtracted from V of a page comes back as the sum of P over the page's keys times its mean
// (arXiv 2609.15810).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/sm90/decode/scales.cuh"
#include "cuda/sm90/decode/softmax.cuh"

namespace mpfa::sm90 {

/// Outputs count in units of V's largest scale, which pages of one value do not have: 2^60 of them are the most that 1
/// may become, so that means up to 2^57 have room beside V down to 2^-80.
template <class Config>
__device__ __forceinline__ void leave_room_for_means(State<Config>& state) {
  if constexpr (Config::kValueScale == ScaleKind::e8m0) state.bias = exponent_bias(59);
  if constexpr (Config::kValueScale == ScaleKind::row || Config::kValueScale == ScaleKind::group) {
    state.bias = __float_as_uint(0x1p60F * Config::kValueUnit);
  }
}

/// out += (sum of P over the keys of a page) * mean, for the tile at key `first`, whose probabilities follow from x.
template <class Config>
__device__ __forceinline__ void add_page_means(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                               std::int32_t first, const Factors<Config>& factors,
                                               const Scores<Config>& x, State<Config>& state) {
  const std::uint32_t g = threadIdx.x % 32 / 4;
  const std::int32_t channels = head_dim<Config>(p), tile_end = min(first + kTileKeys, s.end);
  const float global = p.v.global == nullptr ? 1.0F : p.v.global[piece.head];
  const float lift = 1.0F / (value_unit<Config>(state) * global);
  std::int32_t key = max(first, s.begin);
#pragma unroll 1
  while (key < tile_end) {
    const auto index = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p.page_div));
    const std::int32_t begin = key, end = min((index + 1) * p.page_size, tile_end);
    key = end;
    const std::int32_t page = __ldg(p.page_table + piece.b * p.page_table_stride + index);
    if (static_cast<std::uint32_t>(page) >= static_cast<std::uint32_t>(p.num_pages)) continue;  // the row becomes NaN
    float weight[Config::kRowTiles][2];
#pragma unroll
    for (int k = 0; k < Config::kRowTiles * 2; ++k) {
      const int n = k / 2, j = k % 2;
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int32_t at = first + i * 8 + static_cast<std::int32_t>(g);
        const float probability = ptx::exp2_fast(fmaf(x[n][i / 2][i % 2 * 2 + j], factors[n][j], -state.max[n][j]));
        if (at >= begin && at < end) sum += probability;
      }
#pragma unroll
      for (int i = 4; i < 32; i *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
      weight[n][j] = sum * lift;
    }
    const std::uint16_t* means = p.page_means + page * p.page_mean_page + piece.head * p.page_mean_head;
#pragma unroll
    for (int c = 0; c < Config::kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = value_channel<Config::kValue>(c * 8 + static_cast<int>(g), i);
        if (channel >= channels) continue;
        const float mean = __uint_as_float(static_cast<std::uint32_t>(__ldg(means + channel)) << 16);
#pragma unroll
        for (int k = 0; k < Config::kRowTiles * 2; ++k) {
          float& out = state.out[k / 2][c][i / 2][i % 2 * 2 + k % 2];
          if (weight[k / 2][k % 2] != 0.0F) out = fmaf(weight[k / 2][k % 2], mean, out);
        }
      }
    }
  }
}

}  // namespace mpfa::sm90
