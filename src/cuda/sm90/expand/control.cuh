// What the warps that expand and those that multiply tell each other, in shared memory.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/expand/barrier.cuh"
#include "cuda/sm90/expand/config.h"

namespace mpfa::sm90 {

// Barriers of all threads; 1 is that of the warps that multiply.
inline constexpr int kWorkChosen = 3, kRingFree = 4;
inline constexpr int kTurn = 5;  // and 6: of the two warpgroups that multiply

/// Stages count on over all pieces: tile n of the block is in stage n % kStages.
template <class Config>
struct Control {
  static constexpr int kStages = Config::kStages, kUnitsAt = 2 * kStages * 8, kBrokenAt = kUnitsAt + kStages * 32,
                       kKeyScalesAt = kBrokenAt + kStages * Config::kKeys * Config::kBrokenBytes,
                       kRaisedAt = kKeyScalesAt + (Config::kScalesScores ? kStages * Config::kKeys * 4 : 0),
                       kBadAt = kRaisedAt + 4;
  static_assert(kBadAt + 4 <= Config::kControlBytes);
  std::uint32_t ring, at;

  /// ring: address of the shared memory.
  __device__ __forceinline__ explicit Control(std::uint32_t memory) : ring(memory), at(memory + Config::kControlAt) {}

  __device__ __forceinline__ std::uint32_t full(int stage) const { return at + stage * 8; }
  __device__ __forceinline__ std::uint32_t free(int stage) const { return at + (kStages + stage) * 8; }
  __device__ __forceinline__ std::uint32_t keys(int stage) const { return ring + stage * Config::kTileBytes; }
  __device__ __forceinline__ std::uint32_t values(int stage) const { return keys(stage) + Config::kTilesOfValuesAt; }
  /// Exponents that scales of K and of V of keys 16 w to 16 w + 15 of the tile are relative to.
  __device__ __forceinline__ std::uint32_t units(int stage, int w) const { return at + kUnitsAt + stage * 32 + w * 8; }
  /// Of every key of a tile that not all rows see: which channels of V are NaN, a bit for each, or for each block of 16
  /// where no codes are NaN but scales may be. Of 16 bits: whether any is NaN or infinite.
  __device__ __forceinline__ std::uint32_t broken(int stage, int key) const {
    return at + kBrokenAt + (stage * Config::kKeys + key) * Config::kBrokenBytes;
  }
  /// Scale of a key's token, or the largest of its groups, f32.
  __device__ __forceinline__ std::uint32_t key_scale(int stage, int key) const {
    return at + kKeyScalesAt + (stage * Config::kKeys + key) * 4;
  }
  __device__ __forceinline__ void put_units(int stage, int w, std::int32_t key, std::int32_t value) const {
    asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(units(stage, w)), "r"(key), "r"(value) : "memory");
  }

  /// One thread, before any other uses it.
  __device__ __forceinline__ void start() const {
    for (int s = 0; s < kStages; ++s) {
      ptx::init_barrier(full(s), Config::kFullArrivals), ptx::init_barrier(free(s), 4 * Config::kRowBlocks);
    }
    clear();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  /// Before a piece.
  __device__ __forceinline__ void clear() const { set(kRaisedAt, 0), set(kBadAt, 0); }
  /// Exponents of the piece's warps differ from now on.
  __device__ __forceinline__ void note_raised() const { set(kRaisedAt, 1); }
  __device__ __forceinline__ bool raised() const { return get(kRaisedAt) != 0; }
  /// A page id was outside the pool.
  __device__ __forceinline__ void note_bad() const { set(kBadAt, 1); }
  __device__ __forceinline__ bool bad() const { return get(kBadAt) != 0; }

 private:
  __device__ __forceinline__ void set(int offset, std::uint32_t x) const {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + offset), "r"(x) : "memory");
  }
  __device__ __forceinline__ std::uint32_t get(int offset) const {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at + offset) : "memory");
    return x;
  }
};

/// The tiles of a piece.
template <class Config>
struct Tiles {
  std::int32_t first, end, count;         // keys [first, end)
  std::int32_t whole_begin, whole_count;  // tiles of which every row sees every key

  __device__ __forceinline__ explicit Tiles(const Sequence& s, const Piece& piece) {
    const std::int32_t begin = (s.begin / kTileKeys + piece.first_tile) * kTileKeys;
    first = begin;
    end = s.end > s.begin ? min(begin + piece.tiles * kTileKeys, s.end) : begin;
    count = (end - first + Config::kKeys - 1) / Config::kKeys;
    whole_begin = max(s.all_begin - first + Config::kKeys - 1, 0) / Config::kKeys;
    whole_count = max(min(s.all_end, end) - first, 0) / Config::kKeys - whole_begin;
  }
  /// In uniform registers, of which there are more.
  __device__ __forceinline__ Tiles uniform() const {
    Tiles tiles = *this;
    for (std::int32_t* x : {&tiles.first, &tiles.end, &tiles.count, &tiles.whole_begin, &tiles.whole_count}) {
      *x = ptx::same_in_warp(*x);
    }
    return tiles;
  }
  /// Whether rows see different keys of tile i.
  __device__ __forceinline__ bool masked(std::int32_t i) const {
    return i < whole_begin || i >= whole_begin + whole_count;
  }
};

}  // namespace mpfa::sm90
