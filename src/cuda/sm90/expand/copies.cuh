// The warps that copy tiles of 16 bits, straight to where the MMAs read them. A warp has a fourth of a tile's keys,
// which lie in one page; the stage's barrier is told by the copies themselves that they are done.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/decode/nan_values.cuh"
#include "cuda/sm90/expand/control.cuh"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::sm90 {

template <class Config>
class Copier {
 public:
  __device__ __forceinline__ Copier(const DecodeParams& p, const Control<Config>& control) : p_(&p), control_(control) {
    const std::uint32_t chunk = lane() % kRowChunks, row = warp() * kOwnKeys + lane() / kRowChunks;
    to_ = chunk / 8 * Config::kPartBytes + row * 128 + (chunk ^ row) % 8 * 16;
  }

  /// Copies pieces until there is none.
  __device__ __forceinline__ void run(const Exchange<Config>& exchange) {
    for (int round = 0;; ++round) {
      ptx::sync_some<Config::kBlockThreads>(kWorkChosen);
      const Work& work = exchange.work[round % 2];
      if ((round > 0 && exchange.work[round % 2 ^ 1].last != 0) || work.more == 0) return;
      const Tiles<Config> tiles(work.sequence, work.piece);
      k_ = own_chunk(p_->k, work.piece.head), v_ = own_chunk(p_->v, work.piece.head);
      table_ = p_->page_table + work.piece.b * p_->page_table_stride;
      ahead_ = ask(work, tiles, 0);
      if (round > 0) ptx::sync_some<Config::kBlockThreads>(kRingFree);
#pragma unroll 1
      for (std::int32_t i = 0; i < tiles.count; ++i) copy(work, tiles, i);
      done_ += static_cast<std::uint32_t>(max(tiles.count, 0));
    }
  }

 private:
  /// Chunks of 16 bytes of a row, rows of a copy of a warp, and keys and copies of K of a warp and tile.
  static constexpr std::uint32_t kRowChunks = Config::kD / 8, kCopyRows = 32 / kRowChunks;
  static constexpr std::uint32_t kOwnKeys = Config::kKeys / 4, kCopies = kOwnKeys / kCopyRows;
  static constexpr std::int32_t kLookUp = 32;  // tiles of which lanes know the page

  __device__ __forceinline__ static std::uint32_t lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ static std::uint32_t warp() {
    return threadIdx.x / 32 % 4;
  }
  __device__ __forceinline__ static const std::uint8_t* own_chunk(const DecodePages& pages, std::int32_t head) {
    return pages.data + head * pages.data_head + static_cast<std::int64_t>(lane() / kRowChunks) * pages.data_row +
           lane() % kRowChunks * 16;
  }
  /// The warp's first key of tile i.
  __device__ __forceinline__ static std::int32_t own_key(const Tiles<Config>& tiles, std::int32_t i) {
    return tiles.first + i * Config::kKeys + static_cast<std::int32_t>(warp() * kOwnKeys);
  }
  __device__ __forceinline__ std::int32_t page_of(std::int32_t key) const {
    return static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
  }
  /// The page id of tile i + lane.
  __device__ __forceinline__ std::int32_t ask(const Work& work, const Tiles<Config>& tiles, std::int32_t i) const {
    const std::int32_t key = own_key(tiles, i + static_cast<std::int32_t>(lane()));
    return key < tiles.end ? __ldg(table_ + page_of(key)) : 0;
  }
  /// Where copy r of the warp goes in a tile.
  __device__ __forceinline__ std::uint32_t place(std::uint32_t r) const {
    const std::uint32_t row = r * kCopyRows;
    return (to_ ^ row % 8 * 16) + row * 128;
  }

  __device__ __forceinline__ void copy(const Work& work, const Tiles<Config>& tiles, std::int32_t i) {
    if (i % kLookUp == 0) now_ = ahead_, ahead_ = ask(work, tiles, i + kLookUp);
    const std::int32_t key = own_key(tiles, i), id = __shfl_sync(0xFFFFFFFFU, now_, i % kLookUp);
    const std::int32_t slot = key - page_of(key) * p_->page_size;
    const bool bad = static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(p_->num_pages);
    const std::uint32_t n = done_ + static_cast<std::uint32_t>(i);
    const auto stage = static_cast<int>(n % Config::kStages);
    const std::uint8_t* k =
        k_ + static_cast<std::int64_t>(id) * p_->k.data_page + static_cast<std::int64_t>(slot) * p_->k.data_row;
    const std::uint8_t* v =
        v_ + static_cast<std::int64_t>(id) * p_->v.data_page + static_cast<std::int64_t>(slot) * p_->v.data_row;
    ptx::wait_phase(control_.free(stage), (n / Config::kStages & 1U) ^ 1U);
    const std::uint32_t keys = control_.keys(stage), values = control_.values(stage);
    if (__builtin_expect(bad || tiles.masked(i), 0)) {
      copy_part(work, tiles, key, bad, k, v, stage);
      return;
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kCopies; ++r, k += kCopyRows * p_->k.data_row) ptx::copy_async16(keys + place(r), k);
#pragma unroll
    for (std::uint32_t r = 0; r < kCopies; ++r, v += kCopyRows * p_->v.data_row) {
      ptx::copy_async16(values + place(r), v);
    }
    ptx::arrive_behind_copies(control_.full(stage));
  }

  /// Of a tile of which rows see different keys, or that is in no page: zeros for keys that no row sees, and for what
  /// is NaN or infinite in V, of which the rows are told.
  __device__ __forceinline__ void copy_part(const Work& work, const Tiles<Config>& tiles, std::int32_t key, bool bad,
                                            const std::uint8_t* k, const std::uint8_t* v, int stage) const {
    const std::int32_t begin = work.sequence.begin;
    const std::uint32_t values = control_.values(stage);
    if (bad && key < tiles.end && key + static_cast<std::int32_t>(kOwnKeys) > begin) control_.note_bad();
    const auto own = static_cast<std::int32_t>(lane() / kRowChunks);
#pragma unroll 1
    for (std::uint32_t r = 0; r < kCopies; ++r) {
      const std::int32_t row = key + own + static_cast<std::int32_t>(r * kCopyRows);
      const bool seen = !bad && row >= begin && row < tiles.end;
      ptx::copy_async_part<true>(control_.keys(stage) + place(r), seen ? k : p_->k.data, seen ? 16 : 0);
      ptx::copy_async_part<true>(values + place(r), seen ? v : p_->v.data, seen ? 16 : 0);
      k += kCopyRows * p_->k.data_row, v += kCopyRows * p_->v.data_row;
    }
    ptx::commit_copies();
    ptx::wait_copies<0>();
    std::uint32_t broken = 0;  // a bit for a key
#pragma unroll 1
    for (std::uint32_t r = 0; r < kCopies; ++r) {
      const std::uint32_t at = values + place(r);
      const uint4 w = ptx::load_shared_words(at);
      const uint4 bits = {broken_codes<Config::kValue>(w.x), broken_codes<Config::kValue>(w.y),
                          broken_codes<Config::kValue>(w.z), broken_codes<Config::kValue>(w.w)};
      if ((bits.x | bits.y | bits.z | bits.w) == 0) continue;
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w.x & ~bits.x), "r"(w.y & ~bits.y),
                   "r"(w.z & ~bits.z), "r"(w.w & ~bits.w)
                   : "memory");
      broken |= 1U << (r * kCopyRows + lane() / kRowChunks);
    }
    broken = __reduce_or_sync(0xFFFFFFFFU, broken);
    if (lane() < kOwnKeys) {
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(control_.broken(stage, static_cast<int>(warp() * kOwnKeys + lane()))),
                   "r"(broken >> lane() & 1U)
                   : "memory");
    }
    ptx::fence_shared_writes();
    ptx::arrive(control_.full(stage));
  }

  const DecodeParams* p_;
  Control<Config> control_;
  const std::uint8_t *k_, *v_;  // the lane's chunk of the first row of page 0
  const std::int32_t* table_;   // of the sequence
  std::uint32_t to_;            // the lane's place in a tile
  std::int32_t now_ = 0, ahead_ = 0;
  std::uint32_t done_ = 0;  // tiles of pieces before
};

}  // namespace mpfa::sm90
