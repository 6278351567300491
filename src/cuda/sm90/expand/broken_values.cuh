// NaN and infinity in V of tiles whose keys some rows see and others do not. The MMA would give 0 * NaN to the rows
// that do not, so there are zeros in such a tile, and what is broken is put into the outputs of the rows that see it.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/nan_values.cuh"
#include "cuda/sm90/expand/softmax.cuh"

namespace mpfa::sm90 {

/// Puts what is NaN in V of a masked tile into the outputs of the rows that see its keys. `at`: what the tile's first
/// key has in shared memory, see Control::broken.
template <class Config>
__device__ __forceinline__ void spread_row_nan(const DecodeParams& p, const Sequence& s, std::int32_t row0,
                                               std::int32_t first, std::uint32_t at, RowState<Config>& state) {
  constexpr bool kChannels = Config::kBrokenBytes == 16;
  std::uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < (kChannels ? 8 : 1); ++i) {
    std::uint32_t word;
    const std::uint32_t from = at + (threadIdx.x % (kChannels ? 32 : Config::kKeys / 4) + i * 32) * 4;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    any |= word;
  }
  if (!__any_sync(0xFFFFFFFFU, any != 0)) return;
  const std::uint32_t t = threadIdx.x % 4;
#pragma unroll 1
  for (std::int32_t key = 0; key < Config::kKeys; ++key) {
    std::uint32_t bits[4];
    if constexpr (kChannels) {
      load_words(bits, at + key * 16);
    } else {
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(bits[0]) : "r"(at + key) : "memory");
      bits[1] = bits[2] = bits[3] = 0;
    }
    if ((bits[0] | bits[1] | bits[2] | bits[3]) == 0) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Keys seen = row_keys(p, s, row0 + first_row<Config>() + 8 * r);
      if (first + key < seen.begin || first + key >= seen.end) continue;
#pragma unroll
      for (int i = 0; i < Config::kD / 4; ++i) {
        const std::uint32_t n = i / 2, place = n % 4 * 8 + 2 * t + i % 2;
        const bool broken = kChannels ? (bits[n / 4] >> place & 1U) != 0 : (bits[0] >> n / 2 & 1U) != 0;
        if (broken) state.out[n * 4 + r * 2 + i % 2] = __int_as_float(0x7FC00000);
      }
    }
  }
}

/// The same for V in 16 bits, whose values are read once more from where they are stored.
template <class Config>
__device__ __forceinline__ void spread_stored_values(const DecodeParams& p, const Work& work, std::int32_t first,
                                                     std::uint32_t at, RowState<Config>& state) {
  std::uint32_t flags;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(flags) : "r"(at + threadIdx.x % (Config::kKeys / 4) * 4) : "memory");
  if (!__any_sync(0xFFFFFFFFU, flags != 0)) return;
  const std::int32_t row = work.piece.row_block * Config::kRows + first_row<Config>();
  const Keys seen[2] = {row_keys(p, work.sequence, row), row_keys(p, work.sequence, row + 8)};
#pragma unroll 1
  for (std::int32_t key = 0; key < Config::kKeys; ++key) {
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(flags) : "r"(at + key) : "memory");
    if (flags == 0) continue;
    const std::int32_t position = first + key;
    const auto page = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(position), p.page_div));
    const std::int32_t id = __ldg(p.page_table + work.piece.b * p.page_table_stride + page);
    const std::uint8_t* values =
        p.v.data + static_cast<std::int64_t>(id) * p.v.data_page + work.piece.head * p.v.data_head +
        static_cast<std::int64_t>(position - page * p.page_size) * p.v.data_row + threadIdx.x % 4 * 4;
#pragma unroll
    for (int n = 0; n < Config::kD / 8; ++n) {
      const std::uint32_t pair = __ldg(reinterpret_cast<const std::uint32_t*>(values + n * 16));
      const std::uint32_t broken = pair & broken_codes<Config::kValue>(pair);
#pragma unroll
      for (int i = 0; i < 4 && broken != 0; ++i) {
        if (position < seen[i / 2].begin || position >= seen[i / 2].end) continue;
        state.out[n * 4 + i] += __uint_as_float(i % 2 == 0 ? broken << 16 : broken & 0xFFFF0000U);
      }
    }
  }
}

}  // namespace mpfa::sm90
