// Where the tiles of a warpgroup's piece lie: lanes l and l + 16 know the places of tiles 16 n + l, and ask for the
// next page id.
#pragma once

#include <cstdint>

#include "cuda/sm90/verify/tile.cuh"

namespace mpfa::sm90 {

template <class Config>
class TilePlaces {
 public:
  static constexpr std::int32_t kStep = Config::kGroups * kVerifyKeys, kLookUp = 16;

  __device__ __forceinline__ explicit TilePlaces(const DecodeParams& p) : p_(&p), pages_(p) {}

  /// first: key of the first of `count` tiles, as below.
  __device__ __forceinline__ void enter(const Work& work, std::int32_t first, std::int32_t count) {
    pages_.enter(work.piece.head);
    bad_page_ = false;
    if constexpr (!Config::kScarce) ahead_ = ask(work, first, count, 0);
  }
  /// Makes the lanes know the places of tiles i to i + 15.
  __device__ __forceinline__ void look_up(const Work& work, std::int32_t first, std::int32_t count, std::int32_t i) {
    const std::int32_t own = i + static_cast<std::int32_t>(threadIdx.x % kLookUp);
    const std::int32_t id = Config::kScarce ? ask(work, first, count, i) : ahead_;
    const bool bad = own < count && static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(p_->num_pages);
    bad_page_ = bad_page_ || bad;
    now_ = pages_.place(work, first + own * kStep, bad ? 0 : id);
    if constexpr (!Config::kScarce) ahead_ = ask(work, first, count, i + kLookUp);
  }
  /// Place of the warp's keys of tile i, one of those.
  __device__ __forceinline__ GroupPlace of(std::int32_t i) const {
    return {__shfl_sync(0xFFFFFFFFU, now_.k, i, kLookUp), __shfl_sync(0xFFFFFFFFU, now_.v, i, kLookUp),
            __shfl_sync(0xFFFFFFFFU, now_.scales, i, kLookUp),
            Config::kRankOne ? __shfl_sync(0xFFFFFFFFU, now_.terms, i, kLookUp) : 0U};
  }
  __device__ __forceinline__ void copy(std::uint32_t stage, GroupPlace place) const { pages_.copy(stage, place); }
  __device__ __forceinline__ bool bad_page() const { return bad_page_; }

 private:
  /// The page id of the lane's one of tiles i to i + 15.
  __device__ __forceinline__ std::int32_t ask(const Work& work, std::int32_t first, std::int32_t count,
                                              std::int32_t i) const {
    const std::int32_t own = i + static_cast<std::int32_t>(threadIdx.x % kLookUp);
    return own < count ? pages_.ask(work, first + own * kStep) : 0;
  }

  const DecodeParams* p_;
  GroupPages<Config> pages_;
  GroupPlace now_{};
  std::int32_t ahead_ = 0;
  bool bad_page_ = false;
};

}  // namespace mpfa::sm90
