// A tile of 32 keys: where it is in the pages and in shared memory, its copies, and a warp's sums over tiles.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/decode/scale_row.cuh"
#include "cuda/sm90/decode/schedule.cuh"

namespace mpfa::sm90 {

/// Byte offset of 16-byte chunk `chunk` of a key in a tile with kRowBytes a key: no bank conflicts in copies and matrix
/// loads.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t code_offset(std::uint32_t key, std::uint32_t chunk) {
  constexpr std::uint32_t kRowChunks = kRowBytes / 16, kKeysOfLine = kRowChunks < 8 ? 8 / kRowChunks : 1;
  constexpr std::uint32_t kPlaces = kRowChunks < 8 ? kRowChunks : 8;
  return (key * kRowChunks + (chunk ^ (key / kKeysOfLine % kPlaces))) * 16U;
}

/// Zeros for the codes of a key.
template <int kRowBytes>
__device__ __forceinline__ void clear_row(std::uint32_t codes, std::uint32_t key) {
#pragma unroll
  for (int i = 0; i < kRowBytes; i += 16) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(codes + key * kRowBytes + i), "r"(0) : "memory");
  }
}

/// Place of V's scale of a key: a thread reads those of rows 2 t and 2 t + 1 of all four matrices at once.
__device__ __forceinline__ std::uint32_t value_scale_place(std::uint32_t key) {
  return key % 8 / 2 * 8 + key / 8 * 2 + key % 2;
}

/// Channels of a head. The general kernel also takes fewer than it has room for: the rest is zeros in shared memory.
template <class Config>
__device__ __forceinline__ std::int32_t head_dim(const DecodeParams& p) {
  return Config::kGeneral ? p.head_dim : Config::kD;
}

/// Whether tiles lie inside pages with rows side by side.
template <class Config>
__device__ __forceinline__ bool plain_pages(const DecodeParams& p) {
  return Config::kPlain || (Config::kGeneral && p.plain_keys == kTileKeys);
}

/// Page id and slot of a key; of halves the slot that the first key of the tile would have in that page.
struct Place {
  std::int32_t page, slot;
};

/// Where the keys of one (sequence, KV head) are. A tile inside one page with rows side by side is one place of the
/// whole warp, of halves each half of the lanes has one; otherwise every lane follows key `lane` of the tile.
template <class Config>
class Pages {
 public:
  using KeyScales = ScaleRow<Config::kKey, Config::kD>;
  using ValueScales = ScaleRow<Config::kValue, Config::kD>;

  __device__ __forceinline__ explicit Pages(const DecodeParams& p) : p_(&p) {}

  /// Keys of sequence b up to `end`; before locate.
  __device__ __forceinline__ void enter(std::int32_t b, std::int32_t end) {
    table_ = p_->page_table + b * p_->page_table_stride;
    end_at(end);
    ptx::keep_in_register(table_);
  }
  __device__ __forceinline__ void end_at(std::int32_t end) { last_ = end - 1; }
  /// Before copy_codes and load_scales.
  __device__ __forceinline__ void open(std::int32_t head) {
    const DecodeParams& p = *p_;
    const std::uint32_t lane = threadIdx.x % 32;
    k_ = p.k.data + head * p.k.data_head + lane % kKeyChunks * 16U;
    v_ = p.v.data + head * p.v.data_head + lane % kValueChunks * 16U;
    k_scales_ = p.k.scales + head * p.k.scale_head;
    v_scales_ = p.v.scales + head * p.v.scale_head;
    if (plain_pages<Config>(p)) {
      k_ += lane / kKeyChunks * Config::kKeyRowBytes;
      v_ += lane / kValueChunks * Config::kValueRowBytes;
      k_scales_ += static_cast<std::int32_t>(lane) * scale_row<KeyScales>(p.k);
      v_scales_ += static_cast<std::int32_t>(lane) * scale_row<ValueScales>(p.v);
    }
    ptx::keep_in_register(k_);
    ptx::keep_in_register(v_);
    ptx::keep_in_register(k_scales_);
    ptx::keep_in_register(v_scales_);
    copy_key_to_ = code_offset<Config::kKeyRowBytes>(lane / kKeyChunks, lane % kKeyChunks);
    ptx::keep_in_register(copy_key_to_);
    copy_value_to_ = copy_key_to_;
    if constexpr (kKeyChunks != kValueChunks) {
      copy_value_to_ = code_offset<Config::kValueRowBytes>(lane / kValueChunks, lane % kValueChunks);
      ptx::keep_in_register(copy_value_to_);
    }
  }

  /// Place of the tile that starts at key `first`; lanes past the length take the place of the last key.
  __device__ __forceinline__ Place locate(std::int32_t first) const {
    std::int32_t key = first;
    if constexpr (Config::kHalves) {
      key = min(first + second_half(), p_->max_kv - 1);
    } else if (!plain_pages<Config>(*p_)) {
      key = min(first + static_cast<std::int32_t>(threadIdx.x % 32), last_);
    }
    const auto page = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
    return {__ldg(table_ + page), (Config::kHalves ? first : key) - page * p_->page_size};
  }
  /// Of halves: a second half behind the last key becomes the first one, for there may be no page.
  __device__ __forceinline__ Place existing(Place place, std::int32_t first) const {
    if (!Config::kHalves || first + kTileKeys / 2 <= last_) return place;
    return {__shfl_sync(0xFFFFFFFFU, place.page, 0), __shfl_sync(0xFFFFFFFFU, place.slot, 0) - second_half()};
  }

  /// Codes of K and V to `stage`.
  __device__ __forceinline__ void copy_codes(std::uint32_t stage, Place place) const {
    if (plain_pages<Config>(*p_)) {
      constexpr int kPlaces = Config::kHalves ? 2 : 1;
      const std::uint8_t *k[kPlaces], *v[kPlaces];
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        Place own = place;
        if constexpr (Config::kHalves) {
          own.page = __shfl_sync(0xFFFFFFFFU, place.page, i * kTileKeys / 2);
          own.slot = __shfl_sync(0xFFFFFFFFU, place.slot, i * kTileKeys / 2);
        }
        k[i] = k_ + static_cast<std::int64_t>(own.page) * p_->k.data_page + own.slot * Config::kKeyRowBytes;
        v[i] = v_ + static_cast<std::int64_t>(own.page) * p_->v.data_page + own.slot * Config::kValueRowBytes;
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kMostChunks; ++r) {
        if (r < kKeyChunks) {
          ptx::copy_async16(stage + copy_offset<kKeyChunks>(copy_key_to_, r), k[r * kPlaces / kKeyChunks] + r * 512);
        }
        if (r < kValueChunks) {
          ptx::copy_async16(stage + Config::kKeyBytes + copy_offset<kValueChunks>(copy_value_to_, r),
                            v[r * kPlaces / kValueChunks] + r * 512);
        }
      }
    } else if (Config::kGeneral && p_->head_dim != Config::kD) {
      copy_rows<false>(stage, place);
    } else {
      copy_rows<true>(stage, place);
    }
  }

  /// Scales of key `lane`. Those past the length are whatever lies there.
  __device__ __forceinline__ void load_scales(Place place, KeyScales& k, ValueScales& v) const {
    const std::int64_t page = place.page, slot = place.slot;
    if (plain_pages<Config>(*p_)) {
      k.load(p_->k, k_scales_ + page * p_->k.scale_page + place.slot * scale_row<KeyScales>(p_->k));
      v.load(p_->v, v_scales_ + page * p_->v.scale_page + place.slot * scale_row<ValueScales>(p_->v));
    } else if (Config::kGeneral && p_->head_dim != Config::kD) {
      k.load_part(p_->k, k_scales_ + page * p_->k.scale_page + slot * p_->k.scale_row, p_->head_dim);
      v.load_part(p_->v, v_scales_ + page * p_->v.scale_page + slot * p_->v.scale_row, p_->head_dim);
    } else {
      k.load(p_->k, k_scales_ + page * p_->k.scale_page + slot * p_->k.scale_row);
      v.load(p_->v, v_scales_ + page * p_->v.scale_page + slot * p_->v.scale_row);
    }
  }

 private:
  static constexpr std::uint32_t kKeyChunks = Config::kKeyRowBytes / 16, kValueChunks = Config::kValueRowBytes / 16;
  static constexpr std::uint32_t kMostChunks = kKeyChunks > kValueChunks ? kKeyChunks : kValueChunks;

  /// 16 for lanes of the second half of a tile.
  __device__ __forceinline__ static std::int32_t second_half() {
    return static_cast<std::int32_t>(threadIdx.x % 32 / (kTileKeys / 2) * (kTileKeys / 2));
  }
  /// Bytes between keys of plain pages.
  template <class Scales>
  __device__ __forceinline__ static std::int32_t scale_row(const DecodePages& pages) {
    return Scales::kFixedBytes > 0 ? Scales::kFixedBytes : pages.scale_row;
  }
  /// Where copy r of 512 bytes puts the lane's 16, from where copy 0 does.
  template <std::uint32_t kRowChunks>
  __device__ __forceinline__ static std::uint32_t copy_offset(std::uint32_t first, std::uint32_t r) {
    return (first ^ (kRowChunks < 8 ? 0U : r * (32 / kRowChunks) % 8 * 16)) + r * 512;
  }
  struct Row {
    std::int64_t page, slot;
  };
  template <std::uint32_t kRowChunks>
  __device__ __forceinline__ static Row row_of_copy(Place place, std::uint32_t r) {
    const std::uint32_t key = threadIdx.x % 32 / kRowChunks + r * (32 / kRowChunks);
    return {__shfl_sync(0xFFFFFFFFU, place.page, key), __shfl_sync(0xFFFFFFFFU, place.slot, key)};
  }

  /// Row by row; kWhole: of kD channels.
  template <bool kWhole>
  __device__ __forceinline__ void copy_rows(std::uint32_t stage, Place place) const {
#pragma unroll
    for (std::uint32_t r = 0; r < kMostChunks; ++r) {
      Row row{};
      if (r < kKeyChunks) {
        row = row_of_copy<kKeyChunks>(place, r);
        copy_part<kWhole, kKeyChunks>(stage + copy_offset<kKeyChunks>(copy_key_to_, r),
                                      k_ + row.page * p_->k.data_page + row.slot * p_->k.data_row,
                                      Config::kKeyInfo.bits);
      }
      if (r < kValueChunks) {
        if (kKeyChunks != kValueChunks) row = row_of_copy<kValueChunks>(place, r);
        copy_part<kWhole, kValueChunks>(stage + Config::kKeyBytes + copy_offset<kValueChunks>(copy_value_to_, r),
                                        v_ + row.page * p_->v.data_page + row.slot * p_->v.data_row,
                                        Config::kValueInfo.bits);
      }
    }
  }
  /// The lane's 16 bytes of a row, zeros past its last channel. Rows start at multiples of 16 bytes, or of 8.
  template <bool kWhole, std::uint32_t kRowChunks>
  __device__ __forceinline__ void copy_part(std::uint32_t to, const std::uint8_t* from, int bits) const {
    if constexpr (kWhole) {
      ptx::copy_async16(to, from);
    } else {
      const std::int32_t row = p_->head_dim * bits / 8;
      const std::int32_t left = row - static_cast<std::int32_t>(threadIdx.x % kRowChunks * 16);
      if (row % 16 == 0) {
        ptx::copy_async_part<true>(to, from, min(max(left, 0), 16));
      } else {
        ptx::copy_async_part<false>(to, from, min(max(left, 0), 8));
        ptx::copy_async_part<false>(to + 8, from + 8, min(max(left - 8, 0), 8));
      }
    }
  }

  const DecodeParams* p_;
  const std::int32_t* table_;
  std::int32_t last_;
  std::uint32_t copy_key_to_, copy_value_to_;  // offsets of the lane's first 16 bytes
  const std::uint8_t *k_, *v_, *k_scales_, *v_scales_;
};

/// What turns an accumulated score into a logit in the log2 domain, of columns 2 t and 2 t + 1.
template <class Config>
using Factors = float[Config::kRowTiles][2];

/// Softmax state of a warp. Sums are of the thread's own keys.
template <class Config>
struct State {
  // [chunk][MMA][row g, row g + 8][columns 2 t, 2 t + 1]; value_channel says which channels the rows are.
  float out[Config::kRowTiles][Config::kChunks][2][4];
  float max[Config::kRowTiles][2], sum[Config::kRowTiles][2];
  std::uint32_t bias;  // what V's scales are relative to, see scales.cuh
};

template <class Config>
using Scores = float[Config::kRowTiles][2][4];  // [m][h * 2 + column]

template <class Config>
__device__ __forceinline__ void clear_scores(Scores<Config>& x) {
#pragma unroll
  for (int i = 0; i < Config::kRowTiles * 8; ++i) x[i / 8][i / 4 % 2][i % 4] = 0.0F;
}

}  // namespace mpfa::sm90
