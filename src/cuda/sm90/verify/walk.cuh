// A warpgroup's way through its tiles of a piece: copies, scores, values.
#pragma once

#include "cuda/sm90/verify/blocks.cuh"
#include "cuda/sm90/verify/broken_codes.cuh"
#include "cuda/sm90/verify/byte_softmax.cuh"
#include "cuda/sm90/verify/finish.cuh"
#include "cuda/sm90/verify/logits.cuh"
#include "cuda/sm90/verify/mask.cuh"
#include "cuda/sm90/verify/places.cuh"

namespace mpfa::sm90 {

/// A warpgroup's way through its tiles of a piece: tile i is computed while those up to i + kStages - 1 are copied.
template <class Config>
class GroupWalk {
 public:
  __device__ __forceinline__ explicit GroupWalk(const DecodeParams& p) : p_(&p), places_(p), mask_(p) {}

  /// Starts copies of the first tiles of a piece, those that the outputs of the last one leave room for.
  __device__ __forceinline__ void start(const Work& work, std::uint32_t memory) {
    const Sequence& s = work.sequence;
    const std::int32_t begin = (s.begin / kTileKeys + work.piece.first_tile) * kTileKeys;
    end_ = s.end > s.begin ? min(begin + work.piece.tiles * kTileKeys, s.end) : begin;
    first_ = begin + team_warp<Config>() / 4 * kVerifyKeys;
    count_ = (end_ - first_ + kStep - 1) / kStep;
    whole_begin_ = max(s.all_begin - first_ + kStep - 1, 0) / kStep;
    whole_count_ = (max(min(s.all_end, end_) - first_ - kVerifyKeys, -kStep) + kStep) / kStep - whole_begin_;
    places_.enter(work, first_, count_);
#pragma unroll
    for (int i = 0; i < Config::kEarlyStages; ++i) copy<false>(memory + i * Config::kStageBytes, i, find(work, i));
  }

  /// Adds all tiles to `state`.
  __device__ __forceinline__ void run(const Exchange<Config>& exchange, const Work& work, std::uint32_t memory,
                                      GroupState<Config>& state) {
    const std::uint32_t warp = threadIdx.x / 32 % 4;
    const std::int32_t barrier = Config::kScarce ? group_barrier() : uniform(group_barrier());
    memory = uniform(memory);
    first_ = uniform(first_), end_ = uniform(end_), count_ = uniform(count_);
    whole_begin_ = uniform(whole_begin_), whole_count_ = uniform(max(whole_count_, 0));
    const std::uint32_t queries = uniform(ptx::matrix_descriptor(ptx::shared_address(exchange.queries), Config::kRows));
    std::uint32_t probabilities = ptx::matrix_descriptor(memory + Config::kProbabilitiesAt, Config::kRows);
    std::uint32_t put = memory + Config::kProbabilitiesAt + probability_place<Config>();
    RowTops<Config> tops(memory);
    if constexpr (!Config::kScarce) ptx::keep_in_register(tops.at);
    Lane<Config> own;
    own.enter(*p_, work.piece.head, memory + Config::kScratchAt + warp * Config::kScratchBytes);
    ptx::keep_in_register(put);
    tops.start(exchange.factors, Config::kMasked && scales_logits(*p_));
    if constexpr (Config::kMasked) {
      mask_.enter(work, exchange.row_bias);
#pragma unroll 1
      for (int i = 0; i < Config::kEarlyStages && i < count_; ++i) {
        mask_.copy(mask_.begins(), memory + i * Config::kStageBytes, warp_key(i), end_);
      }
      ptx::commit_copies();
    }
#pragma unroll
    for (int i = Config::kEarlyStages; i < Config::kStages; ++i) {
      copy(memory + i * Config::kStageBytes, i, find(work, i));
    }
    if constexpr (Config::kRankOne) {
#pragma unroll 1
      for (int i = 0; i < Config::kStages && p_->rank_one == nullptr; ++i) {
        clear_terms<Config>(memory + i * Config::kStageBytes);
      }
    }
    if constexpr (kBytes<Config> && Config::kValueScale == ScaleKind::row) {
#pragma unroll 1
      for (int i = 0; i < Config::kStages && (p_->k.scale_bytes == 0 || p_->v.scale_bytes == 0); ++i) {
        fill_scales<Config>(*p_, memory + i * Config::kStageBytes);
      }
    }
    ptx::wait_copies<Config::kStages - (Config::kMasked ? Config::kEarlyStages : 1)>();
    ptx::sync_some<128>(barrier);
    const std::uint32_t last = memory + (Config::kStages - 1) * Config::kStageBytes;
    std::uint32_t stage = memory;
    float x[Config::kScores];
    GroupTile<Config> tile;
    if (count_ > 0) expand(exchange, work, 0, stage, queries, own, tops, x, tile, state, [] {});
    std::int32_t step = Config::kProbabilityBytes;  // to the other P
    for (std::int32_t i = 0; i < count_; ++i) {
      if constexpr (Config::kMasked) {
        if (scales_logits(*p_)) {
          const float unit = Config::kKeyScale == ScaleKind::e8m0 ? followed_unit(state.key_bias) : 1.0F;
          scale_group_logits<Config>(*p_, exchange, unit, warp_key(i), x);
        }
        if ((tile.rare & Rare::kMaskActs) != 0) mask_.apply(work, stage, x);
      }
      if (__builtin_expect((tile.rare & ~Rare::kMaskActs) != 0, 0)) {
        if (kLooksUp && (tile.rare & Rare::kLookUp) != 0) places_.look_up(work, first_, count_, i + Config::kStages);
        if constexpr (Config::kValueScale != ScaleKind::e4m3) {
          if ((tile.rare & Rare::kScaled) != 0) scale_outputs<Config>(state, tile.keep);
        }
        if ((tile.rare & Rare::kMasked) != 0) {
          const std::int32_t first = first_ + i * kStep, row0 = work.piece.row_block * Config::kRows;
          if constexpr (Config::kRankOne) fold_terms<Config>(*p_, tops, tile.terms, x);
          mask_group_scores<Config>(*p_, work.sequence, row0, first + warp * 16, end_, x);
          const std::uint32_t nan = tile.rare & Rare::kNan;
          const auto shows = [&](int row, std::int32_t key) {
            // What the mask says of keys past the piece was not copied: they are another piece's.
            return !Config::kMasked || (first + key < end_ && mask_.shows(work, stage, row, key));
          };
          if (__any_sync(0xFFFFFFFFU, nan != 0)) {
            spread_group_nan<Config>(*p_, work.sequence, row0, first, nan, shows, state);
          }
          if constexpr (kBytes<Config> && Config::kValueInfo.has_nan) {
            if ((tile.rare & Rare::kBroken) != 0) {
              spread_group_codes<Config>(*p_, work.sequence, row0, first, stage + Config::kValuesAt, shows, state);
            }
          }
        }
      }
      if constexpr (!kTopsAhead<Config>) tops.load(tile.top);
      ValueSteps<Config> high;
      high.load(stage + own.values, 1);
      if constexpr (kBytes<Config>) {
        if (__builtin_expect((tile.rare & Rare::kBroken) != 0, 0)) high.drop_broken();
      }
      high.expand(tile.value_scales, 1, own);

      float sum[Config::kRowTiles][2];  // of the tile, of kAddsEarly with those before
      std::uint32_t pairs[Config::kRowTiles][2];
      const auto take = [&] {
#pragma unroll
        for (int k = 0; k < 2 * Config::kRowTiles && Config::kAddsEarly; ++k) {
          sum[k / 2][k % 2] = state.sum[k / 2][k % 2];
        }
        if constexpr (Config::kRoundsP) {
          return take_codes<Config>(*p_, x, tile.terms, tile.value_scales.key, tile.top, sum, pairs);
        } else if constexpr (kBytes<Config>) {
          return take_probabilities<Config>(x, tile.value_scales.key, tile.top, sum, pairs);
        } else {
          return take_probabilities<Config>(x, tile.top, sum, pairs);
        }
      };
      GroupPlace next_place{};
      if constexpr (kFindsEarly) next_place = find<kLooksUp>(work, i + Config::kStages);
      const bool raise = take();
      store_probabilities<Config>(put, pairs);
      ptx::wait_copies<Config::kStages - 2>();
      // P and V of the next tile are there for the whole warpgroup, and what was read is free.
      std::uint32_t from = 0;  // the descriptor of P
      if constexpr (kTopsAhead<Config>) from = uniform(probabilities);
      const bool any = ptx::any_of_some<128>(barrier, raise);
      ptx::fence_shared_writes();
      const auto copy_next = [&, stage] {
        if constexpr (!kFindsEarly) next_place = find<kLooksUp>(work, i + Config::kStages);
        copy(stage, i + Config::kStages, next_place);
      };
      if constexpr (!Config::kScarce) copy_next();
      if (__builtin_expect(any, 0)) {
        raise_group_maxima<Config>(*p_, x, tile.terms, maximum_above<Config>(*p_), tops, memory + Config::kWarpMaximaAt,
                                   barrier, state);
        tops.load(tile.top);
        take();
        store_probabilities<Config>(put, pairs);
        ptx::sync_some<128>(barrier);
        ptx::fence_shared_writes();
      }
#pragma unroll
      for (int k = 0; k < 2 * Config::kRowTiles; ++k) {
        float& all = state.sum[k / 2][k % 2];
        all = Config::kAddsEarly ? sum[k / 2][k % 2] : all + sum[k / 2][k % 2];
      }
      if constexpr (Config::kScarce && !kBytes<Config>) copy_next();

#pragma unroll
      for (int h = 0; h < Config::kHalves; ++h) ptx::pin(state.out[h]);
      ptx::fence_mma();
      if constexpr (!kTopsAhead<Config>) from = uniform(probabilities);
      start_values<Config>(tile.low, from, 0, state);
      start_values<Config>(high, from, 1, state);
      ptx::commit_mma();
      stage = stage == last ? memory : stage + Config::kStageBytes;
      put += step, probabilities += step >> 4, step = -step;
      expand(exchange, work, i + 1, stage, queries, own, tops, x, tile, state, copy_next);
#pragma unroll
      for (int h = 0; h < Config::kHalves; ++h) ptx::pin(state.out[h]);
    }
    ptx::wait_copies<0>();
  }

  __device__ __forceinline__ bool bad_page() const {
    return places_.bad_page();
  }

 private:
  static constexpr std::int32_t kStep = TilePlaces<Config>::kStep, kLookUp = TilePlaces<Config>::kLookUp;
  /// Places of the next copies while P is computed, where that needs no register of others.
  static constexpr bool kFindsEarly = !Config::kScarce && !kScalesSums<Config>;
  /// Whether lanes look up the next places in the branch of what is rare, without one of their own.
  static constexpr bool kLooksUp = !kBytes<Config> && !Config::kMasked && !Config::kFewRegisters &&
                                   !(Config::kKey == Operand::fp4_f32 && Config::kRowTiles == 4);

  /// The same in every lane, for what MMAs take from uniform registers.
  template <class T>
  __device__ __forceinline__ static T uniform(T x) {
    return __reduce_max_sync(0xFFFFFFFFU, x);
  }

  /// The first of the warp's keys of tile i.
  __device__ __forceinline__ std::int32_t warp_key(std::int32_t i) const {
    return first_ + i * kStep + static_cast<std::int32_t>(threadIdx.x / 32 % 4 * kVerifyPage);
  }

  /// The scores of tile i, and half of its V expanded. meanwhile: called beside bytes when the first codes are asked
  /// for.
  template <class F>
  __device__ __forceinline__ void expand(const Exchange<Config>& exchange, const Work& work, std::int32_t i,
                                         std::uint32_t stage, std::uint32_t queries, const Lane<Config>& own,
                                         const RowTops<Config>& tops, float (&x)[Config::kScores],
                                         GroupTile<Config>& tile, GroupState<Config>& state, F&& meanwhile) {
    const bool masked = static_cast<std::uint32_t>(i - whole_begin_) >= static_cast<std::uint32_t>(whole_count_);
    const auto outside = [&](std::int32_t key) {
      return first_ + i * kStep + key < work.sequence.begin || first_ + i * kStep + key >= end_;
    };
    std::uint32_t mask_acts = 0;
    tile.rare = kLooksUp && (i + Config::kStages) % kLookUp == 0 ? Rare::kLookUp : 0U;
    const auto look = [&] {
      if constexpr (Config::kMasked) {
        mask_acts = __any_sync(0xFFFFFFFFU, mask_.acts(mask_.load_ahead(stage), stage)) ? Rare::kMaskActs : 0U;
      }
    };
    if constexpr (kBytes<Config>) {
      expand_tile<Config>(stage, queries, own, tops, masked, outside, x, tile, state, [&] {
        meanwhile();
        if constexpr (Config::kRankOne) load_terms(*p_, stage + own.terms, tile.terms);
        look();
      });
      tile.rare |= mask_acts;
    } else {
      const bool scaled = Config::kMasked && scales_logits(*p_);
      const std::uint32_t nan = expand_blocks<Config>(*p_, exchange.factors, scaled, stage, queries, own, tops, masked,
                                                      outside, x, tile, state, look);
      if constexpr (Config::kMasked) {
        tile.rare |= mask_acts | (__any_sync(0xFFFFFFFFU, nan != 0) ? Rare::kMasked | nan : 0U);
      }
    }
  }

  /// Place of the warp's keys of tile i; of all tiles, in order. kLookedUp: where it is among those known.
  template <bool kLookedUp = false>
  __device__ __forceinline__ GroupPlace find(const Work& work, std::int32_t i) {
    if (!kLookedUp && __builtin_expect(i % kLookUp == 0, 0)) places_.look_up(work, first_, count_, i);
    return places_.of(i);
  }
  /// Starts the copies of tile i, if there is one. kMasks: also of the mask tensor's part.
  template <bool kMasks = true>
  __device__ __forceinline__ void copy(std::uint32_t stage, std::int32_t i, GroupPlace place) const {
    if constexpr (kMasks && Config::kMasked) {
      const auto begins = mask_.begins();
      if (i < count_) {
        places_.copy(stage, place);
        mask_.copy(begins, stage, warp_key(i), end_);
      }
    } else {
      if (i < count_) places_.copy(stage, place);
    }
    ptx::commit_copies();
  }

  const DecodeParams* p_;
  TilePlaces<Config> places_;
  TileMask<Config> mask_;
  std::int32_t first_, end_, count_;
  std::int32_t whole_begin_, whole_count_;  // tiles of which every row sees every key
};

}  // namespace mpfa::sm90
