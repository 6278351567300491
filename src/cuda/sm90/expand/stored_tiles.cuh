// The stored codes of a piece's tiles: where they are in the pages, and their copies into the ring of a warpgroup.
#pragma once

#include <cstdint>

#include "cuda/sm90/expand/control.cuh"
#include "cuda/sm90/verify/products.cuh"

namespace mpfa::sm90 {

/// Of a warp, which copies what it expands: 16 keys of every other tile.
template <class Config>
class StoredTiles {
 public:
  __device__ __forceinline__ explicit StoredTiles(const DecodeParams& p) : p_(&p), pages_(p) {}

  /// The warpgroup of two.
  __device__ __forceinline__ static std::uint32_t group() { return threadIdx.x / 128 % 2; }
  /// Tile i of the warpgroup's is that of the piece.
  __device__ __forceinline__ static std::int32_t tile(std::int32_t i) {
    return 2 * i + static_cast<std::int32_t>(group());
  }

  /// Before the copies of a piece.
  __device__ __forceinline__ void enter(const Work& work, const Tiles<Config>& tiles) {
    pages_.enter(work.piece.head);
    bad_page_ = false;
    ahead_ = ask(work, tiles, 0);
  }
  /// Starts the copies of tile i of the warpgroup, if there is one.
  __device__ __forceinline__ void copy(std::uint32_t to, const Work& work, const Tiles<Config>& tiles, std::int32_t i) {
    if (i % kLookUp == 0) {
      const bool bad = static_cast<std::uint32_t>(ahead_) >= static_cast<std::uint32_t>(p_->num_pages);
      bad_page_ = bad_page_ || (bad && own_key(tiles, i) < tiles.end);
      own_ = pages_.place(work, own_key(tiles, i), bad ? 0 : ahead_);
      ahead_ = ask(work, tiles, i + kLookUp);
    }
    const GroupPlace at{__shfl_sync(0xFFFFFFFFU, own_.k, i, kLookUp), __shfl_sync(0xFFFFFFFFU, own_.v, i, kLookUp),
                        __shfl_sync(0xFFFFFFFFU, own_.scales, i, kLookUp)};
    if (tile(i) < tiles.count) pages_.copy(to, at);
    ptx::commit_copies();
  }
  /// Whether a page id of the lane's tiles was outside of the pool.
  __device__ __forceinline__ bool bad_page() const { return bad_page_; }

  /// Where scales of key `key` of the sequence are, which a row sees; null if that is outside of the pool.
  __device__ __forceinline__ const std::uint32_t* scale_words(const DecodePages& pages, const Work& work,
                                                              std::int32_t key) const {
    const auto page = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
    const std::int32_t id = __ldg(p_->page_table + work.piece.b * p_->page_table_stride + page);
    if (static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(p_->num_pages)) return nullptr;
    const std::uint8_t* at = pages.scales + static_cast<std::int64_t>(id) * pages.scale_page +
                             work.piece.head * pages.scale_head +
                             static_cast<std::int64_t>(key - page * p_->page_size) * pages.scale_row;
    return reinterpret_cast<const std::uint32_t*>(at);
  }

 private:
  static constexpr std::int32_t kLookUp = 16;
  /// First key of tile i + l, of lanes l and l + 16.
  __device__ __forceinline__ static std::int32_t own_key(const Tiles<Config>& tiles, std::int32_t i) {
    return tiles.first + tile(i + static_cast<std::int32_t>(threadIdx.x % kLookUp)) * Config::kKeys;
  }
  __device__ __forceinline__ std::int32_t ask(const Work& work, const Tiles<Config>& tiles, std::int32_t i) const {
    return pages_.ask(work, own_key(tiles, i));
  }

  const DecodeParams* p_;
  GroupPages<Config> pages_;
  GroupPlace own_{};
  std::int32_t ahead_ = 0;
  bool bad_page_ = false;
};

}  // namespace mpfa::sm90
