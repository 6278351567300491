// The warps that expand: of each tile a warp copies the stored codes of 16 keys, and its threads write 32 channels of
// two keys of K and of V as f16 to the tile in shared memory. Two warpgroups have every other tile.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/expand/control.cuh"
#include "cuda/sm90/verify/products.cuh"

namespace mpfa::sm90 {

/// The largest e8m0 code of a warp's words that is not NaN.
__device__ __forceinline__ std::int32_t largest_code(std::uint32_t word, std::uint32_t other) {
  word &= ~__vcmpeq4(word, 0xFFFFFFFFU), other &= ~__vcmpeq4(other, 0xFFFFFFFFU);
  std::uint32_t top = __vmaxu4(word, other);
  top = __vmaxu4(top, top >> 16);
  return static_cast<std::int32_t>(__reduce_max_sync(0xFFFFFFFFU, max(top & 0xFFU, top >> 8 & 0xFFU)));
}

/// A thread's 32 stored channels of one key.
template <Operand kOperand>
struct Chunk {
  static constexpr int kTogether = 2;  // words that are expanded before they are stored
  uint4 codes;

  __device__ __forceinline__ void load(std::uint32_t at) { codes = ptx::load_shared_words(at); }
  /// As f16 times the scales, to four places of 16 bytes of the key that are exclusive or apart.
  template <class Scales>
  __device__ __forceinline__ void expand(std::uint32_t to, const Scales& scales, int key) const {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int m = 0; m < 4; m += kTogether) {
      std::uint32_t f[kTogether][4];
#pragma unroll
      for (int w = 0; w < kTogether; ++w) {
        expand_word<kOperand>(words[m + w], f[w]);
#pragma unroll
        for (std::uint32_t& pair : f[w]) {
          pair = multiply_half2(pair, scales(key, m + w));
          ptx::keep_in_register(pair);
        }
      }
#pragma unroll
      for (int w = 0; w < kTogether; ++w) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"((to ^ ((m + w) * 16)) + key * 8 * 128),
                     "r"(f[w][0]), "r"(f[w][1]), "r"(f[w][2]), "r"(f[w][3])
                     : "memory");
      }
    }
  }
};

template <class Config>
class Producer {
 public:
  __device__ __forceinline__ Producer(const DecodeParams& p, const Control<Config>& control)
      : p_(&p), control_(control), pages_(p) {
    const std::uint32_t key = warp() * kVerifyPage + lane() % 8, chunk = lane() / 8;
    to_ = chunk / 2 * Config::kHalfBytes + key * 128 + (chunk % 2 * 4 ^ key % 8) * 16;
    codes_ = code_offset<Config::kKeyRowBytes>(key, chunk);
    scales_.key_select = chunk | (chunk + 4) << 8;
    scales_.key_scales = key * Config::kKeyScaleBytes + (Config::kFollows ? 0 : 2 * chunk);
    raw_ = control.ring + Config::kRawAt + group() * (Config::kRawStages * Config::kRawBytes);
  }

  /// Expands pieces until there is none.
  __device__ __forceinline__ void run(const Exchange<Config>& exchange) {
    for (int round = 0;; ++round) {
      ptx::sync_some<Config::kBlockThreads>(kWorkChosen);
      const Work& work = exchange.work[round % 2];
      if ((round > 0 && exchange.work[round % 2 ^ 1].last != 0) || work.more == 0) return;
      const Tiles tiles(work.sequence, work.piece);
      pages_.enter(work.piece.head);
      bad_page_ = false;
      ahead_ = ask(work, tiles, 0);
#pragma unroll 1
      for (int i = 0; i < Config::kRawStages; ++i) copy(raw_ + i * Config::kRawBytes, work, tiles, i);
      if constexpr (Config::kFollows) begin_exponents(work, tiles);
      ptx::sync_some<Config::kBlockThreads>(kRingFree);
      expand(work, tiles);
      ptx::wait_copies<0>();
      done_ += static_cast<std::uint32_t>(max(tiles.count, 0));
    }
  }

 private:
  static constexpr std::int32_t kLookUp = 16;
  __device__ __forceinline__ static std::uint32_t lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ static std::uint32_t warp() {
    return threadIdx.x / 32 % 4;
  }
  __device__ __forceinline__ static std::uint32_t group() {
    return threadIdx.x / 128 % 2;
  }
  /// Tile i of the warpgroup's is that of the piece.
  __device__ __forceinline__ static std::int32_t tile(std::int32_t i) {
    return 2 * i + static_cast<std::int32_t>(group());
  }

  /// Of lanes l and l + 16: tile i + l.
  __device__ __forceinline__ std::int32_t own_key(const Tiles& tiles, std::int32_t i) const {
    return tiles.first + tile(i + static_cast<std::int32_t>(lane() % kLookUp)) * kExpandKeys;
  }
  __device__ __forceinline__ std::int32_t ask(const Work& work, const Tiles& tiles, std::int32_t i) const {
    return pages_.ask(work, own_key(tiles, i));
  }
  /// Starts the copies of tile i of the warpgroup, if there is one.
  __device__ __forceinline__ void copy(std::uint32_t to, const Work& work, const Tiles& tiles, std::int32_t i) {
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

  /// The word of scales of key `key` of the sequence, which a row sees.
  __device__ __forceinline__ std::uint32_t scale_word(const DecodePages& pages, const Work& work,
                                                      std::int32_t key) const {
    const auto page = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
    const std::int32_t id = __ldg(p_->page_table + work.piece.b * p_->page_table_stride + page);
    if (static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(p_->num_pages)) return 0;
    const std::uint8_t* at = pages.scales + static_cast<std::int64_t>(id) * pages.scale_page +
                             work.piece.head * pages.scale_head +
                             static_cast<std::int64_t>(key - page * p_->page_size) * pages.scale_row;
    return __ldg(reinterpret_cast<const std::uint32_t*>(at));
  }
  /// e8m0: all warps begin relative to the largest scales of the first tile.
  __device__ __forceinline__ void begin_exponents(const Work& work, const Tiles& tiles) {
    std::uint32_t k[2] = {0, 0}, v[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int32_t key = tiles.first + 32 * i + static_cast<std::int32_t>(lane());
      if (key < work.sequence.begin || key >= tiles.end) continue;
      k[i] = scale_word(p_->k, work, key), v[i] = scale_word(p_->v, work, key);
    }
    key_bias_ = followed_bias(min(largest_code(k[0], k[1]), kLargestFollowed));
    value_bias_ = followed_bias(min(largest_code(v[0], v[1]), kLargestFollowed));
  }

  /// The thread's part of a tile. Codes are loaded late, as there are few registers.
  __device__ __forceinline__ void expand(std::uint32_t from, int stage, const KeyScales<Config>& key_scales,
                                         const KeyScales<Config>& value_scales) const {
    Chunk<Config::kKey> keys[2];
    Chunk<Config::kValue> values[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) keys[k].load(from + codes_ + k * 8 * Config::kKeyRowBytes);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      keys[k].expand(control_.keys(stage) + to_, key_scales, k);
      values[k].load(from + Config::kValuesAt + codes_ + k * 8 * Config::kValueRowBytes);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) values[k].expand(control_.values(stage) + to_, value_scales, k);
  }

  __device__ __forceinline__ void expand(const Work& work, const Tiles& tiles) {
    std::uint32_t from = raw_;
    const std::uint32_t last = raw_ + (Config::kRawStages - 1) * Config::kRawBytes;
#pragma unroll 1
    for (std::int32_t i = 0; tile(i) < tiles.count; ++i) {
      const std::uint32_t n = done_ + static_cast<std::uint32_t>(tile(i)), stage = n % Config::kStages;
      ptx::wait_copies<Config::kRawStages - 1>();
      __syncwarp();
      KeyScales<Config> key_scales, value_scales;
      key_scales.load(from + Config::kKeyScalesAt + scales_.key_scales, scales_);
      value_scales.load(from + Config::kValueScalesAt + scales_.key_scales, scales_);
      if (__builtin_expect(tiles.masked(tile(i)), 0)) {
        hide(work, tiles, tile(i), static_cast<int>(stage), key_scales, value_scales);
      }
      bool beyond = key_scales.convert(key_bias_);
      beyond = value_scales.convert(value_bias_) || beyond;
      ptx::wait_phase(control_.free(stage), (n / Config::kStages & 1U) ^ 1U);
#pragma unroll 1
      for (bool again = false;; again = true) {
        key_scales.spread(), value_scales.spread();
        expand(from, static_cast<int>(stage), key_scales, value_scales);
        // Whether that has to be done again is known while it is done.
        if (!Config::kFollows || again || __builtin_expect(!__any_sync(0xFFFFFFFFU, beyond), 1)) break;
        key_scales.follow(key_bias_);
        value_scales.follow(value_bias_);
        control_.note_raised();
      }
      if (Config::kFollows && lane() == 0) control_.put_units(stage, warp(), key_bias_, value_bias_);
      if (__builtin_expect(bad_page_, 0)) control_.note_bad();
      ptx::fence_shared_writes();
      __syncwarp();
      if (lane() == 0) ptx::arrive(control_.full(stage));

      copy(from, work, tiles, i + Config::kRawStages);
      from = from == last ? raw_ : from + Config::kRawBytes;
    }
  }

  /// Of a tile of which rows see different keys: zeros for keys that no row sees, and for NaN scales of V, of which the
  /// rows are told.
  __device__ __forceinline__ void hide(const Work& work, const Tiles& tiles, std::int32_t i, int stage,
                                       KeyScales<Config>& key_scales, KeyScales<Config>& value_scales) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t own = warp() * kVerifyPage + lane() % 8 + 8 * k;
      const std::int32_t key = tiles.first + i * kExpandKeys + static_cast<std::int32_t>(own);
      std::uint32_t nan = value_scales.drop_nan(k) << 2 * (lane() / 8);
      if (key < work.sequence.begin || key >= tiles.end) {
        key_scales.drop(k), value_scales.drop(k);
        nan = 0;
      }
      nan |= __shfl_xor_sync(0xFFFFFFFFU, nan, 8), nan |= __shfl_xor_sync(0xFFFFFFFFU, nan, 16);
      if (lane() < 8) control_.put_nan(stage, own, nan);
    }
  }

  const DecodeParams* p_;
  Control<Config> control_;
  GroupPages<Config> pages_;
  GroupPlace own_{};
  std::int32_t ahead_ = 0;
  bool bad_page_ = false;
  std::uint32_t raw_, codes_, to_;  // the first raw stage; the thread's places in one and in a tile
  KeyScalePlace scales_;            // also of V
  std::uint32_t key_bias_ = 0, value_bias_ = 0;
  std::uint32_t done_ = 0;  // tiles of pieces before
};

}  // namespace mpfa::sm90
