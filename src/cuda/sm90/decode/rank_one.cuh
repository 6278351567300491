// The rank-one term of centred queries: dS of a key and query head, added to the score.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

/// Terms of the thread's scores of one tile, loaded a tile ahead.
template <class Config>
class RankOneTerms {
 public:
  /// The terms become scores in units of `factors` [kRows].
  __device__ __forceinline__ void enter(const DecodeParams& p, const Piece& piece, const float* factors) {
    if (p.rank_one == nullptr) return;
#pragma unroll
    for (int i = 0; i < Config::kRowTiles * 2; ++i) {
      const int row = column_row(i / 2, i % 2);
      member_[i / 2][i % 2] = place_row(p, 0, piece.row_block * Config::kRows + row).head;
      unit_[i / 2][i % 2] = p.scale * kLog2E / factors[row];
    }
    head_ = piece.head * p.rank_one_head;
  }

  /// Starts the loads of the keys of a tile.
  __device__ __forceinline__ void load(const DecodeParams& p, Place place) {
    if (p.rank_one == nullptr) return;
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = i * 8 + g;
      std::int64_t page = place.page, slot = place.slot + key;
      if constexpr (Config::kHalves) {
        page = __shfl_sync(0xFFFFFFFFU, place.page, i / 2 * 16);
        slot = __shfl_sync(0xFFFFFFFFU, place.slot, i / 2 * 16) + key;
      } else if (!plain_pages<Config>(p)) {
        page = __shfl_sync(0xFFFFFFFFU, place.page, key);
        slot = __shfl_sync(0xFFFFFFFFU, place.slot, key);
      }
      const std::int64_t at = page * p.rank_one_page + head_ + slot * p.group;
#pragma unroll
      for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::int64_t term = at + member_[n][j];
          bits_[n][i][j] = p.rank_one_wide != 0
                               ? __ldg(static_cast<const std::uint32_t*>(p.rank_one) + term)
                               : std::uint32_t{__ldg(static_cast<const std::uint16_t*>(p.rank_one) + term)} << 16;
        }
      }
    }
  }

  /// Scores begin with their terms, or with zero.
  __device__ __forceinline__ void start(const DecodeParams& p, Scores<Config>& x) const {
#pragma unroll
    for (int i = 0; i < Config::kRowTiles * 8; ++i) {
      const int n = i / 8, key = i / 2 % 4, j = i % 2;
      x[n][key / 2][key % 2 * 2 + j] = p.rank_one == nullptr ? 0.0F : __uint_as_float(bits_[n][key][j]) * unit_[n][j];
    }
  }

 private:
  std::uint32_t bits_[Config::kRowTiles][4][2];
  float unit_[Config::kRowTiles][2];
  std::int32_t member_[Config::kRowTiles][2];  // of the group
  std::int64_t head_;
};

}  // namespace mpfa::sm90
