// NaN and infinity in codes of V of 8 and 16 bits, of tiles whose keys some rows see and others do not: there they
// count as zero for the MMAs, and rows that see them have them added.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/nan_values.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// Adds NaN and infinite codes of V of the warp's channels, in a tile from key `first` on, to the outputs of the rows
/// that see their keys. shows: as of spread_group_nan.
template <class Config, class Shows>
__device__ __forceinline__ void spread_group_codes(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                                   std::int32_t first, std::uint32_t values, Shows&& shows,
                                                   GroupState<Config>& state) {
  constexpr int kRowBytes = Config::kValueRowBytes, kChunks = kRowBytes / 64, kSize = Config::kValueInfo.bits / 8;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  std::uint32_t broken[2] = {0, 0};  // of keys lane and lane + 32
#pragma unroll
  for (int i = 0; i < 2 * kChunks; ++i) {
    const std::uint32_t key = lane + i / kChunks * 32;
    const uint4 w = ptx::load_shared_words(values + code_offset<kRowBytes>(key, warp * kChunks + i % kChunks));
    broken[i / kChunks] |= broken_codes<Config::kValue>(w.x) | broken_codes<Config::kValue>(w.y) |
                           broken_codes<Config::kValue>(w.z) | broken_codes<Config::kValue>(w.w);
  }
  const std::uint32_t low = __ballot_sync(0xFFFFFFFFU, broken[0] != 0);
  const std::uint32_t high = __ballot_sync(0xFFFFFFFFU, broken[1] != 0);
  if ((low | high) == 0) return;
#pragma unroll 1
  for (std::uint32_t key = 0; key < kVerifyKeys; ++key) {
    if (((key < 32 ? low : high) >> key % 32 & 1U) == 0) continue;
    float value[2 * Config::kHalves];
#pragma unroll
    for (int i = 0; i < 2 * Config::kHalves; ++i) {
      const ValuePart<Config> part(i / 2);
      const auto quad = static_cast<int>(part.chunk * 8 + lane / 4), element = static_cast<int>(part.half * 2) + i % 2;
      const auto at = static_cast<std::uint32_t>(value_channel<Config::kValue>(quad, element) * kSize);
      std::uint32_t w[1];
      load_words(w, values + code_offset<kRowBytes>(key, at / 16) + at % 16 / 4 * 4);
      w[0] >>= at % 4 * 8;
      value[i] = __uint_as_float(w[0] << 16);
      if constexpr (Config::kValue == Operand::e4m3) {
        value[i] = (w[0] & 0x7FU) == 0x7FU ? __int_as_float(0x7FC00000) : 0.0F;
      }
      if (isfinite(value[i])) value[i] = 0.0F;
    }
    const std::int32_t at = first + static_cast<std::int32_t>(key);
#pragma unroll
    for (int k = 0; k < 2 * Config::kRowTiles; ++k) {
      const Keys seen = row_keys(p, s, row0 + column_row(k / 2, k % 2));
      if (at < seen.begin || at >= seen.end) continue;
      if (!shows(column_row(k / 2, k % 2), static_cast<std::int32_t>(key))) continue;
#pragma unroll
      for (int i = 0; i < 2 * Config::kHalves; ++i) state.out[i / 2][k / 2 * 4 + i % 2 * 2 + k % 2] += value[i];
    }
  }
}

}  // namespace mpfa::sm90
