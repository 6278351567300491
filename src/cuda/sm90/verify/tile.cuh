// A tile of 64 keys of a warpgroup: where it is in the pages, and its copies to a stage. A warp copies the 16 keys
// whose scores it computes; they lie in one page, as page sizes are multiples of 16.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/tile.cuh"
#include "cuda/sm90/verify/config.h"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

/// Where a warp's keys of a tile lie: their codes of K and of V, in DecodeParams::code_unit, and their scales, of K in
/// lanes 0 to 15 and of V in the others, in scale_unit.
struct GroupPlace {
  std::uint32_t k, v, scales;
};

template <class Config>
class GroupPages {
 public:
  __device__ __forceinline__ explicit GroupPages(const DecodeParams& p) : p_(&p) {}

  __device__ __forceinline__ void enter(std::int32_t head) {
    const DecodeParams& p = *p_;
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // By halves the order of rows avoids bank conflicts.
    const std::uint32_t in_order = lane / 16 * 8 + lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 2 % 2;
    const std::uint32_t row = kByHalves ? in_order : lane / kRowChunks, chunk = lane % (kByHalves ? 2 : kRowChunks);
    k_ = p.k.data + head * p.k.data_head + static_cast<std::int64_t>(row) * p.k.data_row + chunk * 16;
    v_ = p.v.data + head * p.v.data_head + static_cast<std::int64_t>(row) * p.v.data_row + chunk * 16;
    // Lanes 0 to 15 copy the scales of K, the others those of V.
    const DecodePages& scaled = lane < 16 ? p.k : p.v;
    scales_ = scaled.scales + head * scaled.scale_head + static_cast<std::int64_t>(lane % 16) * scaled.scale_row;
    scale_bytes_ = scaled.scale_bytes;
    to_ = code_offset<Config::kKeyRowBytes>(kVerifyPage * warp + row, chunk);
    scale_to_ = (lane < 16 ? Config::kKeyScalesAt : Config::kValueScalesAt) +
                (kVerifyPage * warp + lane % 16) * Config::kKeyScaleBytes;
    ptx::keep_in_register(k_);
    ptx::keep_in_register(v_);
    ptx::keep_in_register(scales_);
    ptx::keep_in_register(to_);
    ptx::keep_in_register(scale_to_);
  }

  /// The page id of the warp's keys of a tile of the sequence that starts at key `first`.
  [[nodiscard]] __device__ __forceinline__ std::int32_t ask(const Work& work, std::int32_t first) const {
    return __ldg(p_->page_table + work.piece.b * p_->page_table_stride + page_of(warp_key(work, first)));
  }
  /// The place of these keys in page `id`.
  [[nodiscard]] __device__ __forceinline__ GroupPlace place(const Work& work, std::int32_t first,
                                                            std::int32_t id) const {
    const DecodeParams& p = *p_;
    const std::int32_t key = warp_key(work, first), slot = key - page_of(key) * p.page_size;
    const auto units = [&](std::int32_t page, std::int32_t row, std::int32_t unit) {
      const int shift = 31 - __clz(unit);
      const auto rows = static_cast<std::uint32_t>(static_cast<std::int64_t>(row) * kVerifyPage >> shift);
      return static_cast<std::uint32_t>(id) * static_cast<std::uint32_t>(page >> shift) +
             static_cast<std::uint32_t>(slot / kVerifyPage) * rows;
    };
    const DecodePages& scaled = threadIdx.x % 32 < 16 ? p.k : p.v;
    return {units(p.k.data_page, p.k.data_row, p.code_unit), units(p.v.data_page, p.v.data_row, p.code_unit),
            units(scaled.scale_page, scaled.scale_row, p.scale_unit)};
  }

  __device__ __forceinline__ void copy(std::uint32_t stage, GroupPlace place) const {
    const auto unit = static_cast<std::uint32_t>(p_->code_unit),
               scale_unit = static_cast<std::uint32_t>(p_->scale_unit);
    const std::uint8_t *k = k_ + std::uint64_t{place.k} * unit, *v = v_ + std::uint64_t{place.v} * unit;
#pragma unroll
    for (std::uint32_t r = 0; r < Config::kKeyRowBytes / 32; ++r) {
      if constexpr (kByHalves) {
        const std::uint32_t to = (stage + to_) ^ (r * 32);
        ptx::copy_async16(to, k + r * 32);
        ptx::copy_async16(to + Config::kValuesAt, v + r * 32);
      } else {
        const std::uint32_t to = stage + (to_ ^ (r * kRows % 8 * 16)) + r * 512;
        const std::int64_t rows = r * kRows;
        ptx::copy_async16(to, k + rows * p_->k.data_row);
        ptx::copy_async16(to + Config::kValuesAt, v + rows * p_->v.data_row);
      }
    }
    const std::uint8_t* scales = scales_ + std::uint64_t{place.scales} * scale_unit;
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
  static constexpr std::uint32_t kRowChunks = Config::kKeyRowBytes / 16, kRows = 32 / kRowChunks;
  /// Rows of 64 bytes: two lanes copy a row, 32 bytes at a time, which needs no second address. Others lie in lines of
  /// their own, of which a copy takes whole ones.
  static constexpr bool kByHalves = kRowChunks == 4;
  static_assert(Config::kKeyRowBytes == Config::kValueRowBytes);
  static_assert(Config::kKeyScaleBytes == Config::kValueScaleBytes);

  /// The first of the warp's keys; past the end, of the last ones.
  __device__ __forceinline__ static std::int32_t warp_key(const Work& work, std::int32_t first) {
    const std::int32_t last = (work.sequence.end - 1) / kVerifyPage * kVerifyPage;
    return min(first + static_cast<std::int32_t>(threadIdx.x / 32 % 4 * kVerifyPage), last);
  }
  __device__ __forceinline__ std::int32_t page_of(std::int32_t key) const {
    return static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
  }

  const DecodeParams* p_;
  std::int32_t scale_bytes_;
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
