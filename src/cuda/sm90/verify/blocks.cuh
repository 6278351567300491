// K and V of 4 bits: the scores of a tile, and half of its V expanded.
#pragma once

#include <cstdint>

#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// masked: not all rows see all keys, and those that are `outside` are hidden from all. scaled: scores will be logits,
/// so that rows have no factors. look: called while scores are on their way. Returns which NaN there is in V's scales
/// that was looked for, see Unseen.
template <class Config, class Outside, class F>
__device__ __forceinline__ std::uint32_t expand_blocks(const DecodeParams& p, const float* factors, bool scaled,
                                                       std::uint32_t stage, std::uint32_t queries,
                                                       const Lane<Config>& own, const RowTops<Config>& tops,
                                                       bool masked, Outside&& outside, float (&x)[Config::kScores],
                                                       GroupTile<Config>& tile, GroupState<Config>& state, F&& look) {
  constexpr bool kSums = kScalesSums<Config>;
  // Codes of K before scales, where registers allow.
  constexpr bool kKeysFirst = !kSums && Config::kD == 128 && Config::kRowTiles == 4;
  KeyCodes<Config> keys;
  if constexpr (kKeysFirst) keys.load(stage, own);
  auto stored = ValueScales<Config>::codes(p.v, stage + own.value_scales, own);
  KeyScales<Config> key_scales;
  if constexpr (!kSums) key_scales.load(stage + own.key_scales, own);
  Unseen unseen;
  const auto hide = [&] {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32),
               warp = static_cast<std::int32_t>(threadIdx.x / 32 % 4);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (outside(16 * warp + lane / 4 + 8 * k)) key_scales.hide(k);
      unseen.hidden[k] = outside(2 * lane + k);
    }
    ValueScales<Config>::hide(stored, unseen);
    tile.rare |= Rare::kMasked | unseen.nan;
  };
  // Where exponents are followed, what is masked shares their branch.
  constexpr bool kFollows = kSums || KeyScales<Config>::kFollows, kShares = kFollows && !Config::kMasked;
  if (!kShares && __builtin_expect(masked, 0)) hide();
  if constexpr (Config::kMasked) {
    if (!masked) ValueScales<Config>::hide(stored, unseen);  // a mask tensor may hide keys of any tile
  }
  std::uint32_t halves[Config::kWarpChunks * ValueScales<Config>::kBlocks];
  if constexpr (kSums) {
    const auto largest = [&] { return ValueScales<Config>::largest(stored); };
    if (__builtin_expect(__any_sync(0xFFFFFFFFU, (kShares && masked) || exceeds_followed(largest(), state.bias)), 0)) {
      if (kShares && masked) hide();
      if (follow_groups(largest(), state.bias, tile.keep)) tile.rare |= Rare::kScaled;
    }
    ValueScales<Config>::convert(stored, halves, state.bias);
  } else {
    const auto convert = [&] {
      const bool beyond = ValueScales<Config>::convert(stored, halves, state.bias);
      return key_scales.convert(state.key_bias) || beyond;
    };
    bool beyond = convert();
    beyond = kFollows && __any_sync(0xFFFFFFFFU, beyond || (kShares && masked));
    if (kShares && __builtin_expect(beyond, 0) && masked) {
      hide();
      beyond = __any_sync(0xFFFFFFFFU, convert());
    }
    if (__builtin_expect(beyond, 0)) {
      tile.keep = ValueScales<Config>::follow(stored, halves, state.bias);
      tile.rare |= Rare::kScaled;
      key_scales.follow(state.key_bias);
      if (!scaled) tops.scale(factors, followed_unit(state.key_bias));
    }
  }
  ValueScales<Config>::put(halves, own);
  const auto load_values = [&] {
    tile.value_scales.take(own, 0);
    tile.low.load(stage + own.values, 0);
  };
  const auto expand_values = [&] {
    look();
    tile.low.expand(tile.value_scales, 0, own);
    tile.value_scales.take(own, 1);
    if constexpr (Config::kRowTiles < 8) tile.low.finish();
    if constexpr (kTopsAhead<Config>) tops.load(tile.top);
    ptx::wait_mma<0>();
  };
  if constexpr (kSums) {
    ScoreSums<Config> sums;
    sums.load(stage + own.keys);
    SumScales<Config>::put(p.k, stage, own);
    __syncwarp();
    sums.start(stage + own.keys, queries, own, x);
    load_values();
    expand_values();
    sums.finish(own, x);
  } else {
    if constexpr (!kKeysFirst) keys.load(stage, own);
    key_scales.spread();
    __syncwarp();
    start_scores<Config>(keys, queries, key_scales, x, load_values);
    if constexpr (Config::kRowTiles < 8 && !kTopsAhead<Config>) ptx::wait_mma<2>();
    expand_values();
    ptx::pin(x);
  }
  return unseen.nan;
}

}  // namespace mpfa::sm90
