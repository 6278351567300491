// V of 8 and 16 bits, with K alike or of nvfp4, and scales of whole tokens. K's scale multiplies the scores of its key
// and V's the P, in f32; V's are relative to an exponent that all warps of a warpgroup follow alike, as each looks at
// all keys. All codes come by matrix loads, those of V transposed: 16 bits are operands as they are, 8 bits take a
// conversion for two.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/decode/nan_values.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// Whether V is such.
template <class Config>
inline constexpr bool kBytes = Config::kValueInfo.bits > 4;

/// Whether K is not, but of 4 bits with scales of blocks.
template <class Config>
inline constexpr bool kMixed = Config::kKeyInfo.bits < Config::kValueInfo.bits;

template <class Config>
requires kBytes<Config>
struct Lane<Config> : KeyScalePlace {
  std::uint32_t keys, values;               // of the stage; of bytes for matrix loads
  std::uint32_t value_scales, tile_scales;  // V's of key g of the warp, and of keys 2 l and 2 l + 1 of the tile
  std::uint32_t terms;                      // rank-one terms of key g and the thread's columns

  __device__ __forceinline__ void enter(const DecodeParams& p, std::int32_t /*head*/, std::uint32_t /*scratch*/) {
    const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    constexpr bool kEight = Config::kValueInfo.bits == 8;
    keys = 16 * warp * Config::kKeyRowBytes + matrix_row<Config::kKeyRowBytes>();
    // 32 keys of 16 channels, or 16 keys of 16 channels.
    constexpr std::uint32_t kHalves = Config::kHalves;
    const std::uint32_t key = kEight ? lane : lane % 16,
                        chunk = kEight ? kHalves * warp : 2 * kHalves * warp + lane / 16;
    values = Config::kValuesAt + code_offset<Config::kValueRowBytes>(key, chunk);
    key_scales = Config::kKeyScalesAt + (16 * warp + g) * Config::kKeyScaleBytes;
    tile_scales = Config::kValueScalesAt + lane * 8;
    if constexpr (kMixed<Config>) {
      constexpr std::uint32_t kChunks = Config::kChunks;
      keys = 16 * warp * Config::kKeyRowBytes + code_offset<Config::kKeyRowBytes>(g, t * kChunks / 4) +
             (kChunks == 2 ? t % 2 * 8 : 0);
      key_scales += kChunks / 2 * t;
      value_scales = Config::kValueScalesAt + (16 * warp + g) * 4;
      ptx::keep_in_register(value_scales);
    }
    for (std::uint32_t* x : {&keys, &values}) ptx::keep_in_register(*x);
    if constexpr (Config::kValueScale == ScaleKind::row) {
      for (std::uint32_t* x : {&key_scales, &tile_scales}) ptx::keep_in_register(*x);
    }
    if constexpr (!kMixed<Config>) value_scales = key_scales + (Config::kValueScalesAt - Config::kKeyScalesAt);
    if constexpr (Config::kRankOne) {
      const std::uint32_t bytes = p.rank_one_wide != 0 ? 4 : 2, group = p.group;
      terms = Config::kTermsAt + ((16 * warp + g) * group + 2 * t % group) * bytes;
      ptx::keep_in_register(terms);
    }
  }
};

/// What P of the thread's keys g and g + 8 of its warp is multiplied by.
template <class Config>
requires kBytes<Config>
struct ValueScales<Config> {
  float key[2];
};

/// Scales of tokens of a tile; where none are stored, see fill_scales.
template <class Config>
struct TokenScales {
  static constexpr bool kStored = Config::kValueScale == ScaleKind::row, kOfKeys = Config::kKeyScale == ScaleKind::row;
  float key[2], value[2];  // of keys g and g + 8 of the warp
  float all[2];            // V's of the lane's two keys of the tile

  __device__ __forceinline__ void load(std::uint32_t stage, const Lane<Config>& own) {
    if constexpr (kStored) {
      std::uint32_t two[2];
      load_words(two, stage + own.tile_scales);
#pragma unroll
      for (std::uint32_t k = 0; k < 2; ++k) {
        all[k] = f32_scale(two[k]);
        if constexpr (kOfKeys) key[k] = load(stage + own.key_scales + k * 32);
        value[k] = load(stage + own.value_scales + k * 32);
      }
    }
  }
  /// Where rows see different keys: V's of keys that no row sees become zero, and NaN, taken down in bits of Unseen.
  template <class Outside>
  __device__ __forceinline__ std::uint32_t hide(Outside&& outside) {
    std::uint32_t nan = 0;
    if constexpr (kStored) {
      const auto lane = static_cast<std::int32_t>(threadIdx.x % 32),
                 warp = static_cast<std::int32_t>(threadIdx.x / 32 % 4);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (!isfinite(all[k])) nan |= 1U << (2 * k);
        if (!isfinite(all[k]) || outside(2 * lane + k)) all[k] = 0.0F;
        if (!isfinite(value[k]) || outside(16 * warp + lane / 4 + 8 * k)) value[k] = 0.0F;
      }
    }
    return nan;
  }

 private:
  __device__ __forceinline__ static float load(std::uint32_t at) {
    std::uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
    return f32_scale(word);
  }
};

/// Ones in a stage where scales of tokens are not stored: no copy writes there.
template <class Config>
__device__ __forceinline__ void fill_scales(const DecodeParams& p, std::uint32_t stage) {
  const std::uint32_t own = stage + threadIdx.x % kVerifyKeys * 4;
  const auto fill = [&](const DecodePages& pages, std::uint32_t at) {
    if (pages.scale_bytes == 0) asm volatile("st.shared.f32 [%0], %1;" ::"r"(own + at), "f"(1.0F) : "memory");
  };
  if constexpr (TokenScales<Config>::kStored) fill(p.v, Config::kValueScalesAt);
  if constexpr (TokenScales<Config>::kOfKeys) fill(p.k, Config::kKeyScalesAt);
}

/// Codes of a thread's keys g and g + 8.
template <class Config>
struct KeyWords {
  static constexpr int kLoads = Config::kKeyRowBytes / 32, kStepsOfLoad = 2 * Config::kChunks / kLoads;
  std::uint32_t w[kLoads][4];

  __device__ __forceinline__ void load(std::uint32_t stage, const Lane<Config>& own) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) ptx::load_matrices(w[i], stage + (own.keys ^ i * 32U));
  }
};

/// Starts x = scores of the warpgroup's tile. before_last: called before the last codes are expanded.
template <class Config, class F>
__device__ __forceinline__ void start_scores(const KeyWords<Config>& keys, std::uint32_t queries,
                                             float (&x)[Config::kScores], F&& before_last) {
#pragma unroll
  for (int m = 0; m < Config::kChunks; ++m) {
    if (m == Config::kChunks - 1) before_last();
    std::uint32_t a[2][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      constexpr int kSteps = KeyWords<Config>::kStepsOfLoad;
      std::uint32_t part[1][4];
      Chunks<Config::kKey>::expand_keys(keys.w[(2 * m + s) / kSteps], s % kSteps, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[s][i] = part[0][i];
    }
    ptx::fence_mma();
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      multiply_rows<Config>(x, a[s], ptx::whole_descriptor(queries) + (2 * m + s) * 2 * Config::kRows,
                            m + s > 0 ? 1 : 0);
    }
    ptx::commit_mma();
    if (m == 0) ptx::wait_mma<1>();  // frees the registers of what was started before
  }
}

template <class Config>
requires kBytes<Config>
struct ValueSteps<Config> {
  static constexpr int kLoads = Config::kValueInfo.bits / 8 * Config::kHalves;  // of 32 keys
  std::uint32_t w[kLoads][4], a[2][Config::kHalves][4];

  /// codes: of the lane's row; which: the first or second 32 keys of the tile.
  __device__ __forceinline__ void load(std::uint32_t codes, int which) {
    constexpr int kHalfBytes = Config::kValueInfo.bits * 2;  // 16 channels
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int key = which * 32 + i / Config::kHalves * 16, half = i % Config::kHalves;
      ptx::load_matrices_transposed(w[i], (codes ^ half * kHalfBytes) + key * Config::kValueRowBytes);
    }
  }
  /// Whether there are NaN and infinite codes. A carry tells: all bits of e4m3 are set, or of the exponent of a bf16.
  __device__ __forceinline__ bool has_broken() const {
    constexpr bool kEight = Config::kValueInfo.bits == 8;
    constexpr std::uint32_t kBits = kEight ? 0x7F7F7F7FU : 0x7F807F80U, kOne = kEight ? 0x01010101U : 0x00800080U;
    std::uint32_t all = 0;
    if constexpr (Config::kValueInfo.has_nan) {
#pragma unroll
      for (int i = 0; i < 4 * kLoads; ++i) all |= (w[i / 4][i % 4] & kBits) + kOne;
    }
    return (all & ~kBits & (kEight ? 0x80808080U : 0x80008000U)) != 0;
  }
  /// NaN and infinite codes count as zero.
  __device__ __forceinline__ void drop_broken() {
    if constexpr (Config::kValueInfo.has_nan) {
#pragma unroll
      for (int i = 0; i < 4 * kLoads; ++i) w[i / 4][i % 4] &= ~broken_codes<Config::kValue>(w[i / 4][i % 4]);
    }
  }
  __device__ __forceinline__ void expand(const ValueScales<Config>& /*scales*/, int /*which*/,
                                         const Lane<Config>& /*own*/) {
#pragma unroll
    for (int i = 0; i < 2 * Config::kHalves; ++i) {
      const int s = i / Config::kHalves, half = i % Config::kHalves;
      std::uint32_t part[1][4];
      Chunks<Config::kValue>::expand_values(w[kLoads == Config::kHalves ? half : i], s, part);
#pragma unroll
      for (int k = 0; k < 4; ++k) a[s][half][k] = part[0][k];
    }
  }
  /// Has all of it computed before this place.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 8 * Config::kHalves; ++i) {
      asm volatile("" : "+r"(a[i / (4 * Config::kHalves)][i / 4 % Config::kHalves][i % 4]));
    }
  }
};

/// The scores of a tile, and half of its V expanded. outside: whether a key of the tile is hidden from all rows.
/// meanwhile: called when K is asked for. Sets what there is of Rare.
template <class Config, class Tile, class Outside, class F>
__device__ __forceinline__ void expand_tile(std::uint32_t stage, std::uint32_t queries, const Lane<Config>& own,
                                            const RowTops<Config>& tops, bool masked, Outside&& outside,
                                            float (&x)[Config::kScores], Tile& tile, GroupState<Config>& state,
                                            F&& meanwhile) {
  using Scales = TokenScales<Config>;
  std::conditional_t<kMixed<Config>, KeyCodes<Config>, KeyWords<Config>> keys;
  [[maybe_unused]] KeyScales<Config> key_scales;
  Scales scales;
  keys.load(stage, own);
  if constexpr (kMixed<Config>) key_scales.load(stage + own.key_scales, own);
  scales.load(stage, own);
  meanwhile();
  const auto ahead = [&] {
    tile.low.load(stage + own.values, 0);
    bool broken = masked;
    if constexpr (Config::kMasked) {  // a mask tensor may hide keys of any tile
      ValueSteps<Config> high;
      high.load(stage + own.values, 1);
      broken = __any_sync(0xFFFFFFFFU, tile.low.has_broken() || high.has_broken());
      const std::uint32_t nan = scales.hide(outside);
      if (masked || broken || __any_sync(0xFFFFFFFFU, nan != 0)) tile.rare |= Rare::kMasked | nan;
    } else if (__builtin_expect(masked, 0)) {
      tile.rare |= Rare::kMasked | scales.hide(outside);
    }
    if (__builtin_expect(broken, 0)) {
      tile.low.drop_broken();
      tile.rare |= Rare::kBroken;
    }
  };
  if constexpr (kMixed<Config>) {
    key_scales.spread();
    start_scores<Config>(keys, queries, key_scales, x, ahead);
  } else {
    start_scores<Config>(keys, queries, x, ahead);
  }
  if constexpr (Config::kRowTiles < 8) ptx::wait_mma<2>();
  tile.low.expand(tile.value_scales, 0, own);
  if constexpr (Config::kRowTiles < 8) tile.low.finish();
  if constexpr (kTopsAhead<Config>) tops.load(tile.top);
  if constexpr (Scales::kStored) {
    // This branch also keeps the compiler from expanding behind the wait.
    const float largest = fmaxf(fabsf(scales.all[0]), fabsf(scales.all[1]));
    if (follow_groups(largest, state.bias, tile.keep)) tile.rare |= Rare::kScaled;
  }
  ptx::wait_mma<0>();
  ptx::pin(x);
  if constexpr (Scales::kStored) {
    const float lift = __uint_as_float(state.bias) * kTokenDrop<Config>;
#pragma unroll
    for (int k = 0; k < 2; ++k) tile.value_scales.key[k] = scales.value[k] * lift;
#pragma unroll
    for (int i = 0; i < Config::kScores && Scales::kOfKeys; ++i) x[i] *= scales.key[i / 2 % 2];
  }
}

}  // namespace mpfa::sm90
