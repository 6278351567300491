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
/// lanes 0 to 15 and of V in the others, in scale_unit; and their rank-one terms, in kTermUnit.
struct GroupPlace {
  std::uint32_t k, v, scales, terms;
};

/// How a warp copies 16 rows of codes.
template <int kRowBytes>
struct GroupRows {
  static constexpr std::uint32_t kChunks = kRowBytes / 16, kRows = 32 / kChunks, kCopies = kRowBytes / 32;
  /// Rows of 64 bytes: two lanes copy a row, 32 bytes at a time, which needs no second address. Others lie in lines of
  /// their own, of which a copy takes whole ones.
  static constexpr bool kByHalves = kChunks == 4;

  /// The lane's row and its first 16 bytes there.
  __device__ __forceinline__ static std::uint32_t row() {
    const std::uint32_t lane = threadIdx.x % 32;
    // By halves the order of rows avoids bank conflicts.
    const std::uint32_t in_order = lane / 16 * 8 + lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 2 % 2;
    return kByHalves ? in_order : lane / kChunks;
  }
  __device__ __forceinline__ static std::uint32_t chunk() { return threadIdx.x % 32 % (kByHalves ? 2 : kChunks); }
  __device__ __forceinline__ static const std::uint8_t* begin(const DecodePages& pages, std::int32_t head) {
    return pages.data + head * pages.data_head + static_cast<std::int64_t>(row()) * pages.data_row + chunk() * 16;
  }
  /// Where the lane's part is in a stage.
  __device__ __forceinline__ static std::uint32_t place() {
    return code_offset<kRowBytes>(kVerifyPage * (threadIdx.x / 32 % 4) + row(), chunk());
  }
  /// Copy r, if there is one, of rows that begin at `at` in the stage; own: the lane's place.
  __device__ __forceinline__ static void copy(std::uint32_t r, std::uint32_t stage, std::uint32_t own, std::uint32_t at,
                                              const std::uint8_t* from, const DecodePages& pages) {
    if (r >= kCopies) return;
    if constexpr (kByHalves) {
      ptx::copy_async16(((stage + own) ^ (r * 32)) + at, from + r * 32);
    } else {
      const std::int64_t rows = r * kRows;
      ptx::copy_async16(stage + (own ^ (r * kRows % 8 * 16)) + r * 512 + at, from + rows * pages.data_row);
    }
  }
};

/// Row of the scales of a key of V in a stage. A lane reads those of two keys, 2 l and 2 l + 1: of groups even keys
/// come first, so that its neighbours read what lies side by side.
template <class Config>
__device__ __forceinline__ std::uint32_t value_scale_row(std::uint32_t key) {
  return Config::kValueScale == ScaleKind::group ? key / 2 + key % 2 * (kVerifyKeys / 2) : key;
}

template <class Config>
class GroupPages {
 public:
  __device__ __forceinline__ explicit GroupPages(const DecodeParams& p) : p_(&p) {}

  __device__ __forceinline__ void enter(std::int32_t head) {
    const DecodeParams& p = *p_;
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    k_ = KeyRows::begin(p.k, head), v_ = ValueRows::begin(p.v, head);
    // Lanes 0 to 15 copy the scales of K, the others those of V.
    const DecodePages& scaled = lane < 16 ? p.k : p.v;
    scales_ = scaled.scales + head * scaled.scale_head + static_cast<std::int64_t>(lane % 16) * scaled.scale_row;
    scale_bytes_ = !kAlike && lane < 16 ? Config::kKeyScaleBytes : scaled.scale_bytes;
    if constexpr (Config::kPartWords) {
      scales_ -= reinterpret_cast<std::uintptr_t>(scales_) & 2U;
    }
    to_ = KeyRows::place(), value_to_ = ValueRows::place();
    scale_to_ = (lane < 16 ? Config::kKeyScalesAt : Config::kValueScalesAt) +
                (lane < 16 ? (kVerifyPage * warp + lane) * Config::kKeyScaleStep
                           : value_scale_row<Config>(kVerifyPage * warp + lane % 16) * Config::kValueScaleStep);
    ptx::keep_in_register(k_);
    ptx::keep_in_register(v_);
    ptx::keep_in_register(scales_);
    ptx::keep_in_register(to_);
    ptx::keep_in_register(scale_to_);
    if constexpr (!kAlike) ptx::keep_in_register(value_to_);
    if constexpr (Config::kRankOne) {
      terms_ = static_cast<const std::uint8_t*>(p.rank_one) + head * p.rank_one_head * term_bytes() + lane * 16;
      term_to_ = Config::kTermsAt + warp * (p.group * term_bytes() * kVerifyPage) + lane * 16;
      const bool copies = p.rank_one != nullptr && static_cast<std::int32_t>(lane) < p.group * term_bytes();
      if (!copies) term_to_ = 0;
      ptx::keep_in_register(terms_);
      ptx::keep_in_register(term_to_);
    }
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
    GroupPlace place{units(p.k.data_page, p.k.data_row, p.code_unit), units(p.v.data_page, p.v.data_row, p.code_unit),
                     units(scaled.scale_page, scaled.scale_row, p.scale_unit), 0U};
    if constexpr (Config::kRankOne) {
      place.terms =
          static_cast<std::uint32_t>(id) * static_cast<std::uint32_t>(p.rank_one_page * term_bytes() / kTermUnit) +
          static_cast<std::uint32_t>(slot / kVerifyPage * (p.group * term_bytes() * kVerifyPage / kTermUnit));
    }
    return place;
  }

  __device__ __forceinline__ void copy(std::uint32_t stage, GroupPlace place) const {
    const auto unit = static_cast<std::uint32_t>(p_->code_unit),
               scale_unit = static_cast<std::uint32_t>(p_->scale_unit);
    const std::uint8_t *k = k_ + std::uint64_t{place.k} * unit, *v = v_ + std::uint64_t{place.v} * unit;
#pragma unroll
    for (std::uint32_t r = 0; r < ValueRows::kCopies; ++r) {
      KeyRows::copy(r, stage, to_, 0U, k, p_->k);
      ValueRows::copy(r, stage, kAlike ? to_ : value_to_, Config::kValuesAt, v, p_->v);
    }
    const std::uint8_t* scales = scales_ + std::uint64_t{place.scales} * scale_unit;
    if constexpr (Config::kRankOne) {
      if (term_to_ != 0) {
        ptx::copy_async16(stage + term_to_, terms_ + std::uint64_t{place.terms} * kTermUnit);
      }
    }
    if constexpr (Config::kPartWords) {
      ptx::copy_async_small<4>(stage + scale_to_, scales);
    } else if constexpr (!kAlike) {
      ptx::copy_async_if<Config::kKeyScaleBytes>(scale_bytes_, stage + scale_to_, scales);
      if constexpr (Config::kKeyScaleBytes != Config::kValueScaleBytes) {
        ptx::copy_async_if<Config::kValueScaleBytes>(scale_bytes_, stage + scale_to_, scales);
      }
    } else if constexpr (Config::kKeyScale == ScaleKind::group) {
      constexpr int kMost = Config::kKeyScaleBytes;
      if constexpr (kMost == 32) {
        ptx::copy_async_small<16>(stage + scale_to_, scales);
        ptx::copy_async_if<16>(scale_bytes_ - 16, stage + scale_to_ + 16 * kVerifyKeys, scales + 16);
      } else {
        ptx::copy_async_if<kMost>(scale_bytes_, stage + scale_to_, scales);
        ptx::copy_async_if<kMost / 2>(scale_bytes_, stage + scale_to_, scales);
        if constexpr (kMost == 16 && Config::kD == 256) ptx::copy_async_if<4>(scale_bytes_, stage + scale_to_, scales);
      }
    } else if constexpr (Config::kKeyScale == ScaleKind::row) {
      ptx::copy_async_if<4>(scale_bytes_, stage + scale_to_, scales);
    } else if constexpr (Config::kKeyScale != ScaleKind::none) {
      ptx::copy_async_small<Config::kKeyScaleBytes>(stage + scale_to_, scales);
    }
  }

 private:
  using KeyRows = GroupRows<Config::kKeyRowBytes>;
  using ValueRows = GroupRows<Config::kValueRowBytes>;
  static_assert(KeyRows::kCopies <= ValueRows::kCopies);
  static constexpr bool kAlike = Config::kKey == Config::kValue;

  /// Of a rank-one term.
  __device__ __forceinline__ std::int32_t term_bytes() const {
    return p_->rank_one_wide != 0 ? 4 : 2;
  }
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
  std::uint32_t to_, value_to_, scale_to_, term_to_;  // offsets in a stage
  const std::uint8_t *k_, *v_, *scales_, *terms_;
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
