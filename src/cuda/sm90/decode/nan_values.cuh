// NaN and infinity in V of tiles whose keys some rows see and others do not. The MMA would give 0 * NaN to the rows
// that do not, so such a scale or code counts as zero there and is put into the outputs of the rows that see it.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/codes.cuh"
#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

/// Clears the NaN and infinite scales of the lane's key. Bit b of the result: that of block b was one.
template <class Config>
__device__ __forceinline__ std::uint32_t take_nan_scales(const DecodePages& pages,
                                                         ScaleRow<Config::kValue, Config::kD>& row) {
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
    blocks = isfinite(row.row()) ? 0U : 1U;
    if (blocks != 0) row.clear();
  }
  if constexpr (Config::kValueScale == ScaleKind::group) {
    blocks = row.clear_broken(pages);
  }
  return blocks;
}

/// Bit 4 (2 n + j) + i: key 8 i + g is seen by column 2 t + j of row tile n.
template <class Config>
__device__ __forceinline__ std::uint32_t keys_seen(const Scores<Config>& x) {
  std::uint32_t seen = 0;
#pragma unroll
  for (int k = 0; k < Config::kRowTiles * 8; ++k) {
    const int n = k / 8, j = k / 4 % 2, i = k % 4;
    seen |= x[n][i / 2][i % 2 * 2 + j] == -INFINITY ? 0U : 1U << k;
  }
  return seen;
}
/// Which columns see a key: bit 4 (2 n + j). All lanes.
__device__ __forceinline__ std::uint32_t columns_that_see(std::uint32_t seen, std::uint32_t key) {
  return __shfl_sync(0xFFFFFFFFU, seen, key % 8 * 4 + threadIdx.x % 4) >> (key / 8);
}

/// Puts the NaN of `blocks` (of the lane's key, from take_nan_scales) into the outputs of the rows whose score of the
/// key is not -inf.
template <class Config>
__device__ __forceinline__ void spread_nan(const DecodePages& pages, std::uint32_t blocks, const Scores<Config>& x,
                                           State<Config>& state) {
  const std::uint32_t g = threadIdx.x % 32 / 4, seen = keys_seen<Config>(x);
#pragma unroll 1
  for (std::uint32_t key = 0; key < kTileKeys; ++key) {
    const std::uint32_t nan = __shfl_sync(0xFFFFFFFFU, blocks, key);
    if (nan == 0) continue;
    const std::uint32_t rows = columns_that_see(seen, key);
#pragma unroll
    for (int k = 0; k < Config::kRowTiles * Config::kChunks * 2; ++k) {
      const int n = k / (Config::kChunks * 2), c = k / 2 % Config::kChunks, j = k % 2;
      const std::uint32_t block = Config::kValueScale == ScaleKind::row     ? 0
                                  : Config::kValueScale == ScaleKind::e4m3  ? 2 * c + g / 4
                                  : Config::kValueScale == ScaleKind::group ? c >> pages.scale_shift
                                                                            : c;
      if ((rows >> (8 * n + 4 * j) & nan >> block & 1U) == 0) continue;
      auto& out = state.out[n][c];
      out[0][j] = out[0][2 + j] = out[1][j] = out[1][2 + j] = __int_as_float(0x7FC00000);
    }
  }
}

/// Whether some row sees a key of the tile at `first` that another does not.
template <class Config>
__device__ __forceinline__ bool rows_differ(const DecodeParams& p, const Sequence& s, std::int32_t first) {
  if (Config::kGeneral && p.mask.data != nullptr) return true;
  return max(first, s.begin) < s.all_begin || min(first + kTileKeys, s.end) > s.all_end;
}

/// Bits of the NaN and infinite elements of a word of codes.
template <Operand kOperand>
__device__ __forceinline__ std::uint32_t broken_codes(std::uint32_t w) {
  if constexpr (kOperand == Operand::e4m3) return __vcmpeq4(w & 0x7F7F7F7FU, 0x7F7F7F7FU);
  return __vcmpgeu2(w & 0x7FFF7FFFU, 0x7F807F80U);
}

/// Adds NaN and infinite codes of V to the outputs of the rows whose score of the key is not -inf, and clears them.
template <class Config>
__device__ __forceinline__ void spread_broken_codes(std::uint32_t codes, const Scores<Config>& x,
                                                    State<Config>& state) {
  constexpr Operand kValue = Config::kValue;
  constexpr int kRowBytes = Config::kValueRowBytes, kBytes = Config::kValueInfo.bits / 8;
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, own = codes + lane * kRowBytes;
  std::uint32_t broken = 0;
#pragma unroll 4
  for (int i = 0; i < kRowBytes; i += 16) {
    std::uint32_t w[4];
    load_words(w, own + i);
    broken |= broken_codes<kValue>(w[0]) | broken_codes<kValue>(w[1]) | broken_codes<kValue>(w[2]) |
              broken_codes<kValue>(w[3]);
  }
  const std::uint32_t keys = __ballot_sync(0xFFFFFFFFU, broken != 0);
  if (keys == 0) return;
  const std::uint32_t seen = keys_seen<Config>(x);
#pragma unroll 1
  for (std::uint32_t key = 0; key < kTileKeys; ++key) {
    if ((keys >> key & 1U) == 0) continue;
    const std::uint32_t columns = columns_that_see(seen, key);
#pragma unroll
    for (int k = 0; k < Config::kChunks * 4; ++k) {
      const int c = k / 4, i = k % 4;
      const auto at = static_cast<std::uint32_t>(value_channel<kValue>(c * 8 + static_cast<int>(g), i) * kBytes);
      std::uint32_t w[1];
      load_words(w, codes + code_offset<kRowBytes>(key, at / 16) + at % 16 / 4 * 4);
      w[0] >>= at % 4 * 8;
      float value = __uint_as_float(w[0] << 16);
      if constexpr (kValue == Operand::e4m3) value = (w[0] & 0x7FU) == 0x7FU ? __int_as_float(0x7FC00000) : 0.0F;
      if (isfinite(value)) continue;
#pragma unroll
      for (int column = 0; column < Config::kRowTiles * 2; ++column) {
        if ((columns >> (4 * column) & 1U) != 0) state.out[column / 2][c][i / 2][i % 2 * 2 + column % 2] += value;
      }
    }
  }
  __syncwarp();
  if (broken != 0) {
#pragma unroll 1
    for (int i = 0; i < kRowBytes; i += 4) {
      std::uint32_t w[1];
      load_words(w, own + i);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(own + i), "r"(w[0] & ~broken_codes<kValue>(w[0])) : "memory");
    }
  }
  __syncwarp();
}

}  // namespace mpfa::sm90
