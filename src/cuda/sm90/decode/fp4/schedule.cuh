// Which tiles a block works on. The tiles of all (sequence, row block, KV head) lie in one line that is cut into
// chunks: a long one for every block, then shorter and shorter ones that blocks take when they are done, because
// multiprocessors differ in speed. A piece is the part of a chunk inside one (sequence, row block, KV head). With a
// fixed split every output starts at a multiple of the chunk, so that pieces depend on the sequence alone.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/fp4/config.h"
#include "cuda/sm90/decode/fp4/params.h"

namespace mpfa::sm90 {

/// Rows and visible keys of one sequence. Keys [begin, end) are seen by some row, [all_begin, all_end) by every row.
struct Sequence {
  std::int32_t sq, length, begin, end, all_begin, all_end, tiles;
  std::int64_t first_row;
};

__device__ __forceinline__ Sequence read_sequence(const DecodeParams& p, std::int32_t b) {
  Sequence s;
  s.sq = p.sq;
  s.first_row = 0;
  if (p.cu_seqlens_q != nullptr) {
    s.first_row = p.cu_seqlens_q[b];
    s.sq = static_cast<std::int32_t>(min(p.cu_seqlens_q[b + 1] - s.first_row, static_cast<std::int64_t>(p.sq)));
  }
  s.length = static_cast<std::int32_t>(max(min(p.lengths[b], static_cast<std::int64_t>(p.max_kv)), std::int64_t{0}));
  const std::int32_t first = s.length - s.sq, last = s.length - 1;  // positions of the first and last row
  s.begin = p.window_left >= 0 ? max(first - p.window_left, 0) : 0;
  s.all_begin = p.window_left >= 0 ? max(last - p.window_left, 0) : 0;
  s.end = s.length;
  s.all_end = s.length;
  if (p.causal) s.all_end = min(s.all_end, first + 1);
  if (p.window_right >= 0) s.all_end = min(s.all_end, first + p.window_right + 1);
  s.tiles = s.end > s.begin ? (s.end - 1) / kTileKeys - s.begin / kTileKeys + 1 : 1;
  if (s.sq <= 0) s.tiles = 0;
  return s;
}

struct Piece {
  std::int32_t b, head, row_block, first_tile, tiles;  // first_tile counts from the tile of the sequence's first key
  std::int32_t index, count, slot;                     // piece `index` of `count` of this output, result slot
};

/// Kept in shared memory by the block's first warp.
class Schedule {
 public:
  /// All lanes of one warp.
  __device__ void start(const DecodeParams& p) {
    const int lane = threadIdx.x % 32;
    lines_ = p.kv_heads * p.row_blocks;
    fixed_ = p.fixed_split;
    std::int32_t total = 0, longest = 0, outputs = 0;
#pragma unroll 1
    for (std::int32_t b = lane; b < p.batch; b += 32) {
      const std::int32_t tiles = length(p, b);
      total += tiles;
      longest = max(longest, tiles);
      outputs += tiles > 0 ? lines_ : 0;
    }
    total_ = __reduce_add_sync(0xFFFFFFFFU, total);
    const auto blocks = static_cast<std::int32_t>(gridDim.x);
    size_ = max((total_ + blocks - 1) / blocks, max(p.least_chunk, 1));
    if (fixed_ == 0) {
      longest = __reduce_max_sync(0xFFFFFFFFU, longest) / lines_;
      outputs = __reduce_add_sync(0xFFFFFFFFU, outputs);
      const std::int32_t splits = blocks / max(outputs, 1);
      const std::int32_t split = splits > 0 ? max((longest + splits - 1) / splits, p.least_chunk) : 0;
      // Worth 1/16 of the work: about what a second piece costs.
      if (split > 0 && split <= size_ + size_ / 16 + 1) {
        fixed_ = split;
        total_ = 0;
#pragma unroll 1
        for (std::int32_t b = lane; b < p.batch; b += 32) total_ += length(p, b);
        total_ = __reduce_add_sync(0xFFFFFFFFU, total_);
      }
    }
    if (fixed_ > 0) size_ = fixed_;
    chunk_ = blockIdx.x;
    enter_chunk();
  }

  [[nodiscard]] __device__ bool done() const {
    return position_ >= total_;
  }
  [[nodiscard]] __device__ bool chunk_done() const {
    return position_ >= end_;
  }
  __device__ void take(std::int32_t chunk) {
    chunk_ = chunk;
    enter_chunk();
  }

  /// The next piece of the chunk; all lanes of one warp.
  __device__ Piece next(const DecodeParams& p) {
    const int lane = threadIdx.x % 32;
    std::int32_t base = 0;
    Piece piece{};
    for (std::int32_t b0 = 0;; b0 += 32) {
      const std::int32_t own = length(p, b0 + lane);
      std::int32_t sum = own;
#pragma unroll 1
      for (int i = 1; i < 32; i *= 2) {
        const std::int32_t other = __shfl_up_sync(0xFFFFFFFFU, sum, i);
        if (lane >= i) sum += other;
      }
      const unsigned past = __ballot_sync(0xFFFFFFFFU, base + sum > position_);
      if (past != 0U) {
        const int found = __ffs(static_cast<int>(past)) - 1;
        const std::int32_t start = base + __shfl_sync(0xFFFFFFFFU, sum - own, found);
        const std::int32_t line = __shfl_sync(0xFFFFFFFFU, own, found) / lines_;
        piece = describe(p, b0 + found, start, line);
        break;
      }
      base += __shfl_sync(0xFFFFFFFFU, sum, 31);
    }
    position_ += piece.tiles;
    return piece;
  }

 private:
  /// Tiles of all outputs of a sequence.
  __device__ std::int32_t length(const DecodeParams& p, std::int32_t b) const {
    if (b >= p.batch) return 0;
    std::int32_t tiles = read_sequence(p, b).tiles;
    if (fixed_ > 0) tiles = (tiles + fixed_ - 1) / fixed_ * fixed_;
    return tiles * lines_;
  }
  __device__ void enter_chunk() {
    position_ = chunk_ * size_;
    end_ = min(position_ + size_, total_);
  }

  __device__ Piece describe(const DecodeParams& p, std::int32_t b, std::int32_t start, std::int32_t line) const {
    Piece piece;
    const std::int32_t output = (position_ - start) / line;
    const std::int32_t line_begin = start + output * line;
    const std::int32_t first_chunk = line_begin / size_;
    piece.b = b;
    piece.head = output % p.kv_heads;
    piece.row_block = output / p.kv_heads;
    piece.first_tile = position_ - line_begin;
    piece.tiles = min(end_, line_begin + line) - position_;
    piece.index = chunk_ - first_chunk;
    piece.count = (line_begin + line - 1) / size_ - first_chunk + 1;
    piece.slot = chunk_ + b * lines_ + output;
    return piece;
  }

  std::int32_t lines_, fixed_, size_, total_, chunk_, position_, end_;
};

/// A piece and its sequence, in shared memory.
struct Work {
  Piece piece;
  Sequence sequence;
  std::int32_t more;        // 0: nothing is left
  std::int32_t ends_chunk;  // the block needs another chunk after it
};

}  // namespace mpfa::sm90
