// The warps that expand: of each tile a warp copies the stored codes of 16 keys, and its threads write 32 channels of
// two keys of K and of V as f16 to the tile in shared memory. Two warpgroups have every other tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/expand/chunks.cuh"
#include "cuda/sm90/expand/stored_tiles.cuh"

namespace mpfa::sm90 {

/// The largest e8m0 code of a warp's words that is not NaN.
__device__ __forceinline__ std::int32_t largest_code(std::uint32_t word, std::uint32_t other) {
  word &= ~__vcmpeq4(word, 0xFFFFFFFFU), other &= ~__vcmpeq4(other, 0xFFFFFFFFU);
  std::uint32_t top = __vmaxu4(word, other);
  top = __vmaxu4(top, top >> 16);
  return static_cast<std::int32_t>(__reduce_max_sync(0xFFFFFFFFU, max(top & 0xFFU, top >> 8 & 0xFFU)));
}

template <class Config>
class Producer {
 public:
  __device__ __forceinline__ Producer(const DecodeParams& p, const Control<Config>& control)
      : p_(&p), control_(control), stored_(p) {
    const std::uint32_t key = warp() * kVerifyPage + lane() % 8, chunk = lane() / 8;
    to_ = chunk / 2 * Config::kPartBytes + key * 128 + (chunk % 2 * 4 ^ key % 8) * 16;
    key_codes_ = code_offset<Config::kKeyRowBytes>(key, chunk * Chunk<Config::kKey>::kPieces);
    value_codes_ = Config::kValuesAt + code_offset<Config::kValueRowBytes>(key, chunk * Chunk<Config::kValue>::kPieces);
    scales_.key_select = chunk | (chunk + 4) << 8;
    scales_.key_scales = key * Config::kKeyScaleBytes + (Config::kKeyScale == ScaleKind::e4m3 ? 2 * chunk : 0);
    if constexpr (Config::kGroupsOfKeys) scales_.key_scales += GroupRow<Config::kKey>::offset(p.k, chunk);
    if constexpr (Config::kFloatsOfValues) {
      value_scales_ = Config::kValueScalesAt + value_scale_row<Config>(key) * Config::kValueScaleBytes;
      if constexpr (!kTokensOfValues) value_scales_ += GroupRow<Config::kValue>::offset(p.v, chunk);
    }
    raw_ = control.ring + Config::kRawAt + Stored::group() * (Config::kRawStages * Config::kRawBytes);
  }

  /// Expands pieces until there is none.
  __device__ __forceinline__ void run(const Exchange<Config>& exchange) {
    for (int round = 0;; ++round) {
      ptx::sync_some<Config::kBlockThreads>(kWorkChosen);
      const Work& work = exchange.work[round % 2];
      if ((round > 0 && exchange.work[round % 2 ^ 1].last != 0) || work.more == 0) return;
      const Tiles<Config> tiles(work.sequence, work.piece);
      stored_.enter(work, tiles);
#pragma unroll 1
      for (int i = 0; i < Config::kRawStages; ++i) stored_.copy(raw_ + i * Config::kRawBytes, work, tiles, i);
      if constexpr (Config::kFollows) begin_exponents(work, tiles);
      ptx::sync_some<Config::kBlockThreads>(kRingFree);
      expand(work, tiles);
      ptx::wait_copies<0>();
      done_ += static_cast<std::uint32_t>(max(tiles.count, 0));
    }
  }

 private:
  using Stored = StoredTiles<Config>;
  __device__ __forceinline__ static std::uint32_t lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ static std::uint32_t warp() {
    return threadIdx.x / 32 % 4;
  }
  __device__ __forceinline__ static std::int32_t tile(std::int32_t i) {
    return Stored::tile(i);
  }

  /// All warps begin relative to the largest scales of the first tile.
  __device__ __forceinline__ void begin_exponents(const Work& work, const Tiles<Config>& tiles) {
    std::uint32_t k[2] = {0, 0}, v[2] = {0, 0};
    float largest[2] = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int32_t key = tiles.first + 32 * i + static_cast<std::int32_t>(lane());
      if (key < work.sequence.begin || key >= tiles.end) continue;
      if constexpr (Config::kFollowsKeys) {
        if (const std::uint32_t* at = stored_.scale_words(p_->k, work, key)) k[i] = __ldg(at);
      }
      if constexpr (Config::kFloatsOfValues) {
        if (p_->v.scale_bytes == 0) {
          largest[i] = 1.0F;
          continue;
        }
        const std::uint32_t* at = stored_.scale_words(p_->v, work, key);
#pragma unroll
        for (int w = 0; w < Config::kValueScaleBytes / 4; ++w) {
          if (at != nullptr && 4 * w < p_->v.scale_bytes) {
            largest[i] = fmaxf(largest[i], Values::largest_of(p_->v, __ldg(at + w)));
          }
        }
      } else if constexpr (Config::kFollowsValues) {
        if (const std::uint32_t* at = stored_.scale_words(p_->v, work, key)) v[i] = __ldg(at);
      }
    }
    if constexpr (Config::kFollowsKeys) key_bias_ = followed_bias(min(largest_code(k[0], k[1]), kLargestFollowed));
    if constexpr (Config::kFloatsOfValues) {
      value_exponent_ = Values::largest(largest[0], largest[1]);
    } else {
      value_bias_ = followed_bias(min(largest_code(v[0], v[1]), kLargestFollowed));
    }
  }

  static constexpr bool kTokensOfValues = Config::kValueScale == ScaleKind::row;
  static constexpr bool kTokensOfKeys = Config::kKeyScale == ScaleKind::row;
  using Keys =
      std::conditional_t<kTokensOfKeys, NoScales,
                         std::conditional_t<Config::kGroupsOfKeys, KeyRatios<Config::kKey>, KeyScales<Config>>>;
  using Values = std::conditional_t<Config::kFloatsOfValues, FollowedScales<Config::kValue>, KeyScales<Config>>;
  struct Scales {
    Keys keys;
    Values values;
  };

  __device__ __forceinline__ void load(std::uint32_t from, Scales& scales) const {
    const std::uint32_t key_scales = from + Config::kKeyScalesAt + scales_.key_scales;
    if constexpr (Config::kGroupsOfKeys) {
      scales.keys.load(p_->k, key_scales, 8 * Config::kKeyScaleBytes);
    } else if constexpr (!kTokensOfKeys) {
      scales.keys.load(key_scales, scales_);
    }
    if constexpr (Config::kFloatsOfValues) {
      constexpr int kRows = Config::kValueScale == ScaleKind::group ? 4 : 8;  // from key to key + 8
      scales.values.load(p_->v, from + value_scales_, kRows * Config::kValueScaleBytes);
    } else {
      scales.values.load(from + Config::kValueScalesAt + scales_.key_scales, scales_);
    }
  }
  /// True if one does not fit its exponent.
  __device__ __forceinline__ bool convert(Scales& scales) const {
    bool beyond = false;
    if constexpr (Config::kGroupsOfKeys)
      scales.keys.convert();
    else if constexpr (!kTokensOfKeys)
      beyond = scales.keys.convert(key_bias_);
    if constexpr (Config::kFloatsOfValues)
      return scales.values.convert(value_exponent_) || beyond;
    else
      return scales.values.convert(value_bias_) || beyond;
  }
  __device__ __forceinline__ void follow(Scales& scales) {
    if constexpr (Config::kFollowsKeys) scales.keys.follow(key_bias_);
    if constexpr (Config::kFloatsOfValues)
      scales.values.follow(value_exponent_);
    else if constexpr (Config::kFollowsValues)
      scales.values.follow(value_bias_);
  }
  __device__ __forceinline__ void spread(Scales& scales) const {
    if constexpr (!Config::kScalesScores) scales.keys.spread();
    if constexpr (!Config::kFloatsOfValues) scales.values.spread();
  }

  /// The thread's part of a tile. Codes are loaded late, as there are few registers.
  __device__ __forceinline__ void expand(std::uint32_t from, int stage, bool masked, const Scales& scales) const {
    Chunk<Config::kKey> keys[2];
    Chunk<Config::kValue> values[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) keys[k].load(from + key_codes_ + k * 8 * Config::kKeyRowBytes);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      keys[k].expand(control_.keys(stage) + to_, scales.keys, k);
      values[k].load(from + value_codes_ + k * 8 * Config::kValueRowBytes);
      if (Config::kValueInfo.has_nan && __builtin_expect(masked, 0)) values[k].drop_nan();
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) values[k].expand(control_.values(stage) + to_, scales.values, k);
  }

  __device__ __forceinline__ void expand(const Work& work, const Tiles<Config>& tiles) {
    std::uint32_t from = raw_;
    const std::uint32_t last = raw_ + (Config::kRawStages - 1) * Config::kRawBytes;
#pragma unroll 1
    for (std::int32_t i = 0; tile(i) < tiles.count; ++i) {
      const std::uint32_t n = done_ + static_cast<std::uint32_t>(tile(i));
      const auto stage = static_cast<int>(n % Config::kStages);
      ptx::wait_copies<Config::kRawStages - 1>();
      __syncwarp();
      Scales scales;
      load(from, scales);
      const bool masked = tiles.masked(tile(i));
      if (__builtin_expect(masked, 0)) hide(work, tiles, tile(i), from, stage, scales);
      const bool beyond = convert(scales);
      ptx::wait_phase(control_.free(stage), (n / Config::kStages & 1U) ^ 1U);
#pragma unroll 1
      for (bool again = false;; again = true) {
        spread(scales);
        expand(from, stage, masked, scales);
        // Whether that has to be done again is known while it is done.
        if (!Config::kFollows || again || __builtin_expect(!__any_sync(0xFFFFFFFFU, beyond), 1)) break;
        follow(scales);
        control_.note_raised();
      }
      publish(from, stage, scales);
      ptx::fence_shared_writes();
      __syncwarp();
      if (lane() == 0) ptx::arrive(control_.full(stage));

      stored_.copy(from, work, tiles, i + Config::kRawStages);
      from = from == last ? raw_ : from + Config::kRawBytes;
    }
  }
  /// What the multiplying warps need to know of the warp's keys.
  __device__ __forceinline__ void publish(std::uint32_t from, int stage, const Scales& scales) const {
    if (Config::kFollows && lane() == 0) {
      control_.put_units(stage, warp(), Config::kFollowsKeys ? followed_exponent(key_bias_) : 0,
                         Config::kFloatsOfValues ? value_exponent_ : followed_exponent(value_bias_));
    }
    if constexpr (Config::kGroupsOfKeys) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (lane() >= 8) continue;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(control_.key_scale(stage, warp() * kVerifyPage + lane() + 8 * k)),
                     "f"(scales.keys.largest(k))
                     : "memory");
      }
    } else if constexpr (kTokensOfKeys) {
      const std::uint32_t key = warp() * kVerifyPage + lane();
      if (lane() < kVerifyPage) {
        const float scale = token_scale(p_->k, from + Config::kKeyScalesAt + key * 4);
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(control_.key_scale(stage, key)), "f"(scale) : "memory");
      }
    }
    if (__builtin_expect(stored_.bad_page(), 0)) control_.note_bad();
  }

  /// Of a tile of which rows see different keys: zeros for keys that no row sees, and for NaN of V, of which the rows
  /// are told.
  __device__ __forceinline__ void hide(const Work& work, const Tiles<Config>& tiles, std::int32_t i, std::uint32_t from,
                                       int stage, Scales& scales) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t own = warp() * kVerifyPage + lane() % 8 + 8 * k;
      const std::int32_t key = tiles.first + i * Config::kKeys + static_cast<std::int32_t>(own);
      const bool outside = key < work.sequence.begin || key >= tiles.end;
      if constexpr (Config::kFloatsOfValues) {
        Chunk<Config::kValue> codes;
        codes.load(from + value_codes_ + k * 8 * Config::kValueRowBytes);
        std::uint32_t broken = codes.drop_nan();
        if (scales.values.drop_nan(k)) broken = 0xFFFFFFFFU;
        tell(stage, own, outside ? 0U : broken);
      } else {
        std::uint32_t broken = scales.values.drop_nan(k) << 2 * (lane() / 8);
        tell(stage, own, outside ? 0U : broken);
      }
      if (outside) {
        if constexpr (!kTokensOfKeys) scales.keys.drop(k);
        scales.values.drop(k);
      }
    }
  }
  /// Takes down what is NaN in V of the thread's channels of a key: a bit for each of 32 channels where codes may be
  /// NaN, otherwise for two blocks of 16.
  __device__ __forceinline__ void tell(int stage, std::uint32_t key, std::uint32_t broken) const {
    const std::uint32_t at = control_.broken(stage, key);
    if constexpr (Config::kBrokenBytes == 16) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + lane() / 8 * 4), "r"(broken) : "memory");
    } else {
      if constexpr (Config::kFloatsOfValues) broken = (broken != 0 ? 3U : 0U) << 2 * (lane() / 8);
      broken |= __shfl_xor_sync(0xFFFFFFFFU, broken, 8), broken |= __shfl_xor_sync(0xFFFFFFFFU, broken, 16);
      if (lane() < 8) asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(broken) : "memory");
    }
  }

  const DecodeParams* p_;
  Control<Config> control_;
  Stored stored_;
  std::uint32_t raw_;                            // the first raw stage
  std::uint32_t key_codes_, value_codes_, to_;   // the thread's places in one and in a tile
  KeyScalePlace scales_;                         // of K; also of V if both have scales of blocks
  std::uint32_t value_scales_ = 0;               // of V otherwise
  std::uint32_t key_bias_ = 0, value_bias_ = 0;  // e8m0
  std::int32_t value_exponent_ = 127;            // scales of tokens and of groups
  std::uint32_t done_ = 0;                       // tiles of pieces before
};

}  // namespace mpfa::sm90
