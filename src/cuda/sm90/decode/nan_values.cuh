// NaN scales of V in tiles whose keys some rows see and others do not. The MMA would give 0 * NaN to the rows that do
// not, so such a block counts as zero there and its NaN is put into the outputs of the rows that see it.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

/// Clears the NaN scales of the lane's key. Bit b of the result: that of block b was one. Not of scales of groups.
template <class Config>
__device__ __forceinline__ std::uint32_t take_nan_scales(ScaleRow<Config::kValue, Config::kD>& row) {
  std::uint32_t blocks = 0;
  if constexpr (Config::kValueScale == ScaleKind::e8m0 || Config::kValueScale == ScaleKind::e4m3) {
    constexpr std::uint32_t kNan = Config::kValueScale == ScaleKind::e8m0 ? 0xFFFFFFFFU : 0x7F7F7F7FU;
#pragma unroll
    for (int i = 0; i < ScaleRow<Config::kValue, Config::kD>::kWords; ++i) {
      const std::uint32_t nan = __vcmpeq4(row.w[i] & kNan, kNan);
      row.w[i] &= ~nan;
      // One bit of every byte, gathered in the top byte of the product.
      blocks |= ((nan & 0x08040201U) * 0x01010101U) >> 24 << (4 * i);
    }
  }
  if constexpr (Config::kValueScale == ScaleKind::row) {
    blocks = isnan(row.row()) ? 1U : 0U;
    if (blocks != 0) row.clear();
  }
  return blocks;
}

/// Puts the NaN of `blocks` (of the lane's key, from take_nan_scales) into the outputs of the rows whose score of the
/// key is not -inf.
template <class Config>
__device__ __forceinline__ void spread_nan(std::uint32_t blocks, const Scores<Config>& x, State<Config>& state) {
  const std::uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  std::uint32_t seen = 0;  // bit 4 (2 n + j) + i: key 8 i + g by column 2 t + j of row tile n
#pragma unroll
  for (int k = 0; k < Config::kRowTiles * 8; ++k) {
    const int n = k / 8, j = k / 4 % 2, i = k % 4;
    seen |= x[n][i / 2][i % 2 * 2 + j] == -INFINITY ? 0U : 1U << k;
  }
#pragma unroll 1
  for (std::uint32_t key = 0; key < kTileKeys; ++key) {
    const std::uint32_t nan = __shfl_sync(0xFFFFFFFFU, blocks, key);
    if (nan == 0) continue;
    const std::uint32_t rows = __shfl_sync(0xFFFFFFFFU, seen, key % 8 * 4 + t) >> (key / 8);
#pragma unroll
    for (int k = 0; k < Config::kRowTiles * Config::kChunks * 2; ++k) {
      const int n = k / (Config::kChunks * 2), c = k / 2 % Config::kChunks, j = k % 2;
      const std::uint32_t block = Config::kValueScale == ScaleKind::row    ? 0
                                  : Config::kValueScale == ScaleKind::e8m0 ? c
                                                                           : 2 * c + g / 4;
      if ((rows >> (8 * n + 4 * j) & nan >> block & 1U) == 0) continue;
      auto& out = state.out[n][c];
      out[0][j] = out[0][2 + j] = out[1][j] = out[1][2 + j] = __int_as_float(0x7FC00000);
    }
  }
}

}  // namespace mpfa::sm90
