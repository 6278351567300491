// A tile of 64 keys of a warpgroup: where it is in the pages, and its copies to a stage. A warp copies the 16 keys
// whose scores it computes; they lie in one page, as page sizes are multiples of 16.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/tile.cuh"
#include "cuda/sm90/verify/config.h"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

template <class Config>
class GroupPages {
 public:
  __device__ __forceinline__ explicit GroupPages(const DecodeParams& p) : p_(&p) {}

  __device__ __forceinline__ void enter(std::int32_t head) {
    const DecodeParams& p = *p_;
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const auto row = static_cast<std::int64_t>(lane / kRowChunks), chunk = static_cast<std::int64_t>(lane % kRowChunks);
    k_ = p.k.data + head * p.k.data_head + row * p.k.data_row + chunk * 16;
    v_ = p.v.data + head * p.v.data_head + row * p.v.data_row + chunk * 16;
    // Lanes 0 to 15 copy the scales of K, the others those of V.
    const DecodePages& scaled = lane < 16 ? p.k : p.v;
    scales_ = scaled.scales + head * scaled.scale_head + static_cast<std::int64_t>(lane % 16) * scaled.scale_row;
    scale_bytes_ = scaled.scale_bytes, scale_page_ = scaled.scale_page, scale_row_ = scaled.scale_row;
    to_ = code_offset<Config::kKeyRowBytes>(kVerifyPage * warp + lane / kRowChunks, lane % kRowChunks);
    scale_to_ = (lane < 16 ? Config::kKeyScalesAt : Config::kValueScalesAt) +
                (kVerifyPage * warp + lane % 16) * Config::kKeyScaleBytes;
    ptx::keep_in_register(k_);
    ptx::keep_in_register(v_);
    ptx::keep_in_register(scales_);
    ptx::keep_in_register(to_);
    ptx::keep_in_register(scale_to_);
  }

  /// Place of the warp's keys of a tile of the sequence that starts at key `first`; past the end, of the last ones.
  __device__ __forceinline__ Place locate(const Work& work, std::int32_t first) const {
    const std::int32_t last = (work.sequence.end - 1) / kVerifyPage * kVerifyPage;
    const std::int32_t key = min(first + static_cast<std::int32_t>(threadIdx.x / 32 % 4 * kVerifyPage), last);
    const auto page = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
    return {__ldg(p_->page_table + work.piece.b * p_->page_table_stride + page), key - page * p_->page_size};
  }

  __device__ __forceinline__ void copy(std::uint32_t stage, Place place) const {
    const auto at = [&](const std::uint8_t* base, std::int32_t page, std::int32_t row) {
      return ptx::multiply_add_wide(place.slot, row, ptx::multiply_add_wide(place.page, page, base));
    };
    const std::uint8_t *k = at(k_, p_->k.data_page, p_->k.data_row), *v = at(v_, p_->v.data_page, p_->v.data_row);
    constexpr std::uint32_t kRows = 32 / kRowChunks;
#pragma unroll
    for (std::uint32_t r = 0; r < kVerifyPage / kRows; ++r) {
      const std::uint32_t to = stage + (kRowChunks < 8 ? to_ : to_ ^ (r * kRows % 8 * 16)) + r * 512;
      const std::int64_t rows = r * kRows;
      ptx::copy_async16(to, k + rows * p_->k.data_row);
      ptx::copy_async16(to + Config::kValuesAt, v + rows * p_->v.data_row);
    }
    const std::uint8_t* scales = at(scales_, scale_page_, scale_row_);
    if constexpr (Config::kKeyScale == ScaleKind::group) {
      ptx::copy_async_if<Config::kKeyScaleBytes>(scale_bytes_, stage + scale_to_, scales);
      ptx::copy_async_if<Config::kKeyScaleBytes / 2>(scale_bytes_, stage + scale_to_, scales);
    } else if constexpr (Config::kKeyScale == ScaleKind::row) {
      ptx::copy_async_if<4>(scale_bytes_, stage + scale_to_, scales);
    } else if constexpr (Config::kKeyScale != ScaleKind::none) {
      ptx::copy_async_small<Config::kKeyScaleBytes>(stage + scale_to_, scales);
    }
  }

 private:
  static constexpr std::uint32_t kRowChunks = Config::kKeyRowBytes / 16;
  static_assert(Config::kKeyRowBytes == Config::kValueRowBytes);
  static_assert(Config::kKeyScaleBytes == Config::kValueScaleBytes);

  const DecodeParams* p_;
  std::int32_t scale_bytes_, scale_page_, scale_row_;
  std::uint32_t to_, scale_to_;  // offsets in a stage
  const std::uint8_t *k_, *v_, *scales_;
};

/// Sums of a piece, of a thread.
template <class Config>
struct GroupState {
  // [half][n * 4 + r * 2 + j]: row g + 8 r of the half's 16 channels of the warp, column 8 n + 2 t + j.
  float out[Config::kHalves][Config::kScores];
  float sum[Config::kRowTiles][2];  // over the thread's own keys
  std::uint32_t bias, key_bias;     // what scales of V and of K are relative to, see scales.cuh
};

}  // namespace mpfa::sm90
