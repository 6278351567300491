// A warp's way through the tiles of a piece.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/group_scores.cuh"
#include "cuda/sm90/decode/mask.cuh"
#include "cuda/sm90/decode/nan_values.cuh"
#include "cuda/sm90/decode/page_means.cuh"
#include "cuda/sm90/decode/products.cuh"
#include "cuda/sm90/decode/rank_one.cuh"
#include "cuda/sm90/decode/scales.cuh"
#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

/// A warp's way through its tiles of a piece: tile i is computed while the codes of i + 1 and i + 2 are copied; the
/// scales of i + 1 and the page id of i + 3 are loads in flight.
template <class Config>
class Walk {
 public:
  __device__ __forceinline__ explicit Walk(const DecodeParams& p) : p_(&p), pages_(p) {}

  /// Starts the copies of the first tile of a piece of which every warp has each kWarps-th tile.
  __device__ __forceinline__ void start(const Work& work, std::uint32_t memory) {
    const int warp = team_warp<Config>();
    const Sequence& s = work.sequence;
    enter(work.piece.b, s.end, s.begin / kTileKeys + work.piece.first_tile + warp, Config::kWarps);
    open(work.piece.head);
    // Tiles that pad an output to a multiple of a fixed split do not exist.
    const std::int32_t tiles = s.end > s.begin ? min(work.piece.tiles, s.tiles - work.piece.first_tile) : 0;
    ask(base_ + (tiles_of_warp(tiles, warp) - 1) * step_);
    start_copies(tiles, memory);
  }

  /// The warp's tiles are `base`, `base + step` and so on, of a sequence with keys up to `end`.
  __device__ __forceinline__ void enter(std::int32_t b, std::int32_t end, std::int32_t base, std::int32_t step) {
    pages_.enter(b, end);
    base_ = ptx::same_in_warp(base), step_ = step;
    bad_page_ = false;
  }
  /// Says the tile that the warp's first was counted from.
  __device__ __forceinline__ void begin_at(std::int32_t tile) { base_ = ptx::same_in_warp(base_ + tile); }
  /// Says the end of a sequence that was entered without.
  __device__ __forceinline__ void end_at(std::int32_t end) { pages_.end_at(end); }
  /// Before start_copies.
  __device__ __forceinline__ void open(std::int32_t head) { pages_.open(head); }
  /// Asks for the page ids of the first three tiles up to tile `last`.
  __device__ __forceinline__ void ask(std::int32_t last) {
    if (base_ <= last) first_ = pages_.locate(first_key(0));
    if (base_ + step_ <= last) next_ = pages_.locate(first_key(1));
    if (base_ + 2 * step_ <= last) later_ = pages_.locate(first_key(2));
  }
  /// Starts the copies of the warp's first tile. tiles: of all warps.
  __device__ __forceinline__ void start_copies(std::int32_t tiles, std::uint32_t memory) {
    const int warp = team_warp<Config>();
    count_ = ptx::same_in_warp(tiles_of_warp(tiles, warp));
    // The four warps that multiply together take equally many steps; the first of them has most tiles.
    steps_ = Config::kGroups ? ptx::same_in_warp(tiles_of_warp(tiles, warp / 4 * 4)) : count_;
    if (count_ > 0) {
      first_ = checked(first_, 0);
      pages_.copy_codes(memory, first_);
      pages_.load_scales(first_, k_row_, v_row_);
    }
    ptx::commit_copies();
  }

  /// Adds all tiles to `state`.
  __device__ __forceinline__ void run(const Exchange<Config>& exchange, const Work& work, std::uint32_t memory,
                                      State<Config>& state) {
    const std::uint32_t key_scales = memory + Config::kWarpBytes - Config::kKScaleBytes - Config::kVScaleBytes;
    const std::uint32_t value_scales = key_scales + Config::kKScaleBytes;
    const std::uint32_t queries = ptx::shared_address(exchange.queries);
    Factors<Config> factors;
    if constexpr (Config::kRowTiles == 1) load_factors(exchange, factors);
    // Tiles [full_begin, full_end) of the sequence need no mask.
    const std::int32_t full_begin = (work.sequence.all_begin + kTileKeys - 1) / kTileKeys;
    const std::int32_t full_end = ptx::same_in_warp(max(work.sequence.all_end, 0) / kTileKeys);
    std::uint32_t key_matrix = matrix_row<Config::kKeyRowBytes>(), codes = memory;
    ptx::keep_in_register(key_matrix);
    std::uint32_t value_matrix = key_matrix;
    if constexpr (Config::kKeyRowBytes != Config::kValueRowBytes) {
      value_matrix = matrix_row<Config::kValueRowBytes>();
      ptx::keep_in_register(value_matrix);
    }
    if constexpr (Config::kRankOne) {
      // The first tile's terms are loaded here, where the factors are known.
      terms_.enter(*p_, work.piece, exchange.factors);
      if (count_ > 0) terms_.load(*p_, first_);
    }
    if (count_ > 1) {
      next_ = checked(next_, 1);
      pages_.copy_codes(memory + Config::kStageBytes, next_);
    }
    ptx::commit_copies();
    const std::uint32_t own_value_scales = value_scales + kept_value_scale_place() * 2;
    for (std::int32_t i = 0; i < steps_; ++i) {
      const std::int32_t tile = !Config::kGroups || i < count_ ? base_ + i * step_ : kNoTile;
      const bool masked = tile < full_begin || tile >= full_end || (Config::kGeneral && p_->mask.data != nullptr);
      std::uint32_t nan_blocks = 0;
      if constexpr (Config::kGeneral) {
        if (p_->mask.data != nullptr) prefetch_mask<Config>(*p_, exchange.row_bias, tile * kTileKeys);
      }
      bool unseen = false;  // the lane's key, by every row
      if (masked) {
        // Scales of such keys may be anything; zero makes the key's part of P V zero.
        const std::int32_t key = tile * kTileKeys + static_cast<std::int32_t>(threadIdx.x % 32);
        unseen = key < work.sequence.begin || key >= work.sequence.end;
        if (unseen) {
          k_row_.clear();
          v_row_.clear();
        }
        nan_blocks = take_nan_scales<Config>(p_->v, v_row_);
      }
      Scores<Config> x;
      if constexpr (Config::kRankOne) {
        terms_.start(*p_, x);
      } else if constexpr (!Config::kGroups) {
        clear_scores<Config>(x);
      }
      prepare_key_scales<Config>(*p_, k_row_, key_scales);
      prepare_value_scales<Config>(*p_, v_row_, value_scales, own_value_scales, state);
      ptx::wait_copies<1>();
      __syncwarp();
      if constexpr (Config::kValueInfo.has_nan) {
        // Their codes may be NaN, which no P of zero takes away.
        if (unseen) clear_row<Config::kValueRowBytes>(codes + Config::kKeyBytes, threadIdx.x % 32);
        __syncwarp();
      }
      if (i + 1 < count_) {
        pages_.load_scales(next_, k_row_, v_row_);
        if constexpr (Config::kRankOne) terms_.load(*p_, next_);
      }
      if (i + 2 < count_) {
        next_ = checked(later_, i + 2);
        pages_.copy_codes(codes == memory ? memory + 2 * Config::kStageBytes : codes - Config::kStageBytes, next_);
        if (i + 3 < count_) later_ = pages_.locate(first_key(i + 3));
      }
      ptx::commit_copies();

      if constexpr (Config::kGroups) {
        if (has_third_term(*p_)) {
          score_tile_by_group<Config, 3>(codes, key_matrix, key_scales, queries, x);
        } else {
          score_tile_by_group<Config, 2>(codes, key_matrix, key_scales, queries, x);
        }
      } else {
        score_tile<Config>(codes, key_matrix, key_scales, queries, x);
      }
      if constexpr (Config::kRowTiles > 1) load_factors(exchange, factors);  // registers are scarce
      if constexpr (Config::kGeneral) {
        if (p_->finishes_logits) finish_logits<Config>(*p_, exchange, work.sequence, tile * kTileKeys, x);
      }
      if (masked) {
        mask_scores<Config>(*p_, work.sequence, work.piece.row_block * Config::kRows, tile * kTileKeys, x);
        if (__any_sync(0xFFFFFFFFU, nan_blocks != 0)) spread_nan<Config>(p_->v, nan_blocks, x, state);
      }
      std::uint32_t probabilities[Config::kRowTiles][2][2];
      add_probabilities<Config>(*p_, factors, x, value_scales, state, probabilities);
      if constexpr (Config::kValueInfo.has_nan) {
        if (masked && rows_differ<Config>(*p_, work.sequence, tile * kTileKeys)) {
          spread_broken_codes<Config>(codes + Config::kKeyBytes, x, state);
        }
      }
      if constexpr (Config::kGeneral) {
        if (p_->page_means != nullptr) {
          add_page_means<Config>(*p_, work.sequence, work.piece, tile * kTileKeys, factors, x, state);
        }
      }
      add_values<Config>(codes + Config::kKeyBytes, value_matrix, value_scales, probabilities, state);
      codes = codes == memory + 2 * Config::kStageBytes ? memory : codes + Config::kStageBytes;
      __syncwarp();
    }
    ptx::wait_copies<0>();
  }

  __device__ __forceinline__ bool bad_page() const { return bad_page_; }

 private:
  static constexpr std::int32_t kNoTile = (1 << 26) - 1;  // behind the last key

  __device__ __forceinline__ static std::int32_t tiles_of_warp(std::int32_t tiles, int warp) {
    return (tiles - warp + Config::kWarps - 1) / Config::kWarps;
  }
  __device__ __forceinline__ std::int32_t first_key(std::int32_t i) const { return (base_ + i * step_) * kTileKeys; }
  __device__ __forceinline__ void load_factors(const Exchange<Config>& exchange, Factors<Config>& factors) const {
#pragma unroll
    for (int i = 0; i < Config::kRowTiles * 2; ++i) {
      const float factor = exchange.factors[column_row(i / 2, i % 2)];
      factors[i / 2][i % 2] = Config::kGeneral && p_->finishes_logits ? 1.0F : factor;
    }
  }
  /// Of the warp's tile i.
  __device__ __forceinline__ Place checked(Place place, std::int32_t i) {
    place = pages_.existing(place, first_key(i));
    const bool bad = static_cast<std::uint32_t>(place.page) >= static_cast<std::uint32_t>(p_->num_pages);
    bad_page_ = bad_page_ || bad;
    return {bad ? 0 : place.page, place.slot};
  }

  const DecodeParams* p_;
  Pages<Config> pages_;
  std::int32_t base_, step_, count_, steps_;
  Place first_{}, next_{}, later_{};
  typename Pages<Config>::KeyScales k_row_;
  typename Pages<Config>::ValueScales v_row_;
  RankOneTerms<Config> terms_;
  bool bad_page_ = false;
};

}  // namespace mpfa::sm90
