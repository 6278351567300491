// Which tiles a block works on. Outputs, each a (sequence, row block, KV head), that are about equally long get the
// same number of blocks, or blocks as many whole outputs each. Otherwise the tiles of all outputs lie in one line that
// is cut into one chunk for every block, and a piece is the part of a chunk inside one output. With a fixed split every
// output starts at a multiple of the chunk, so that pieces depend on the sequence alone; blocks take further chunks
// when they are done.
//
// Row blocks of a KV head read the same keys. So blocks next to each other have the same chunk of keys, one row block
// each (`abreast`): they read it at the same time, the first from memory and the others from the second-level cache.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/pieces.h"

namespace mpfa::sm90 {

/// Rows of one sequence and the keys that they read from pages: [begin, end) some row, [all_begin, all_end) every row.
struct Sequence {
  std::int32_t sq, length, begin, end, all_begin, all_end, tiles;
  std::int32_t sink, packed_end;  // tokens [sink, packed_end) are in pages only
  std::int64_t first_row;
};

struct Keys {
  std::int32_t begin, end;
};
/// Keys that row r of a KV head sees, from pages or in bf16.
__device__ __forceinline__ Keys row_keys(const DecodeParams& p, const Sequence& s, std::uint32_t r) {
  const std::int32_t position = static_cast<std::int32_t>(divide(r, p.group_div)) + s.length - s.sq;
  Keys keys{0, s.length};
  if (p.causal) keys.end = min(keys.end, position + 1);
  if (p.window_right >= 0) keys.end = min(keys.end, position + p.window_right + 1);
  if (p.window_left >= 0) keys.begin = max(position - p.window_left, 0);
  return keys;
}
/// End of the packed keys of a row that sees keys up to `end`; see packed_limit.
__device__ __forceinline__ std::int32_t packed_end(const DecodeParams& p, const Sequence& s, std::int32_t end) {
  const std::int32_t seen = max(end - p.recent, 0);
  const auto units = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(seen), p.commit_div));
  return min(units * static_cast<std::int32_t>(p.commit_div.d), s.packed_end);
}

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
  s.sink = 0, s.packed_end = s.length;
  if (p.wide != 0) {
    const SequenceView& view = p.sequences[b];
    const std::int64_t length = s.length;
    s.sink = static_cast<std::int32_t>(min(max(view.sink, std::int64_t{0}), length));
    s.packed_end = static_cast<std::int32_t>(min(max(view.packed_end, std::int64_t{0}), length));
    s.begin = max(s.begin, s.sink), s.all_begin = max(s.all_begin, s.sink);
    s.end = packed_end(p, s, s.end), s.all_end = packed_end(p, s, s.all_end);
  }
  s.tiles = s.end > s.begin ? (s.end - 1) / kTileKeys - s.begin / kTileKeys + 1 : 1;
  if (s.sq <= 0) s.tiles = 0;
  return s;
}

/// Whether whole outputs, or equal parts of `split` tiles, are better than even shares of all tiles, whose further
/// pieces cost 1/16 of the work or 64 tiles.
__device__ __forceinline__ bool nearly_equal(std::int32_t split, std::int32_t share) {
  return split <= share + min(share / 16, 64) + 1;
}

struct Piece {
  std::int32_t b, head, row_block, first_tile, tiles;  // first_tile counts from the tile of the sequence's first key
  std::int32_t index, count, slot;                     // piece `index` of `count` of this output, result slot
  std::int32_t paired;                                 // 1: the other piece is in the other block of the cluster
};

/// A piece and its sequence.
struct Work {
  Piece piece;
  Sequence sequence;
  std::int32_t more;        // 0: there is no piece
  std::int32_t ends_chunk;  // the block needs another chunk after it
  std::int32_t last;        // nothing is left for the block after it
};

/// Kept in shared memory by the block's first warp. Its code runs once, out of a cold instruction cache, before
/// anything else can: so it is short, and divides by constants of the plan.
class Schedule {
 public:
  /// All lanes of one warp.
  __device__ void start(const DecodeParams& p, std::int32_t block) {
    const int lane = threadIdx.x % 32;
    lines_ = static_cast<std::int32_t>(p.line_div.d);
    fixed_ = p.fixed_split;
    cut_ = Cut::line;
    std::int32_t total = 0, longest = 0;
#pragma unroll 1
    for (std::int32_t b = lane; b < p.batch; b += 32) {
      const std::int32_t tiles = padded_tiles(p, b);
      total += tiles;
      longest = max(longest, tiles);
    }
    total_ = __reduce_add_sync(0xFFFFFFFFU, total) * lines_;
    longest = __reduce_max_sync(0xFFFFFFFFU, longest);
    const std::int32_t least = max(useful_tiles(longest, p.merge_tiles), p.least_chunk);
    size_ = fixed_ > 0 ? fixed_ : max(quotient(total_ + blocks(p) - 1, p.block_div), least);
    enter(p, block);
    if (fixed_ == 0 && p.splits == 0) {
      const std::int32_t outputs = p.batch * lines_, each = quotient(outputs + blocks(p) - 1, p.block_div);
      if (nearly_equal(each * longest, size_)) cut_ = Cut::none, size_ = each, total_ = outputs;
    }
    if (fixed_ == 0 && p.splits > 0) {
      // Blocks of a cluster merge in a fourth of the time.
      const std::int32_t least_split = p.cluster_log > 0 && p.direct == 0 ? (least + 3) / 4 : least;
      const std::int32_t split = max(quotient(longest + p.splits - 1, p.split_div), least_split);
      if (nearly_equal(split, size_)) cut_ = Cut::outputs, size_ = split;
    }
    enter_chunk();
  }

  /// Whether outputs are cut by themselves.
  [[nodiscard]] __device__ bool direct() const {
    return cut_ == Cut::outputs;
  }
  [[nodiscard]] __device__ bool chunk_done() const {
    return position_ >= end_;
  }
  /// Goes on with chunk `number` of those of all row blocks.
  __device__ void take(const DecodeParams& p, std::int32_t number) {
    enter(p, number);
    enter_chunk();
  }

  /// The next piece; all lanes of one warp.
  __device__ Work next(const DecodeParams& p) {
    Work work{};
    if (direct()) {
      work.more = place_directly(p, work) ? 1 : 0;
      work.last = 1;
    } else if (cut_ == Cut::none) {
      work.more = place_whole(p, work) ? 1 : 0;
      work.last = chunk_done() ? 1 : 0;
    } else if (position_ < total_) {
      work.more = 1;
      work.piece = find(p);
      work.sequence = read_sequence(p, work.piece.b);
      position_ += work.piece.tiles;
      work.ends_chunk = chunk_done() ? 1 : 0;
      work.last = chunk_done() && total_ <= static_cast<std::int64_t>(size_) * blocks(p) ? 1 : 0;
    }
    return work;
  }

 private:
  /// What chunks are parts of: the line of all tiles, an output, or nothing, when they are whole outputs.
  enum class Cut : std::int32_t { line, outputs, none };

  __device__ static std::int32_t quotient(std::int32_t n, const Divisor& d) {
    return static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(n), d));
  }
  __device__ static std::int32_t blocks(const DecodeParams& p) {
    return static_cast<std::int32_t>(p.block_div.d);
  }
  /// Tiles of an output of a sequence, made up to whole splits.
  __device__ std::int32_t padded_tiles(const DecodeParams& p, std::int32_t b) const {
    const std::int32_t tiles = read_sequence(p, b).tiles;
    return fixed_ > 0 ? (tiles + fixed_ - 1) / fixed_ * fixed_ : tiles;
  }
  __device__ void enter(const DecodeParams& p, std::int32_t number) {
    chunk_ = quotient(number, p.abreast_div);
    row_block_ = number - chunk_ * static_cast<std::int32_t>(p.abreast_div.d);
  }
  __device__ void enter_chunk() {
    position_ = chunk_ * size_;
    end_ = min(position_ + size_, total_);
  }

  /// Outputs of about the same length: block i has split i % splits of output i / splits.
  __device__ bool place_directly(const DecodeParams& p, Work& work) const {
    Piece& piece = work.piece;
    const std::int32_t output = quotient(chunk_, p.split_div);
    piece.index = chunk_ - output * p.splits;
    piece.b = quotient(output, p.line_div);
    if (piece.b >= p.batch) return false;
    place_output(p, output - piece.b * lines_, piece);
    work.sequence = read_sequence(p, piece.b);
    piece.first_tile = piece.index * size_;
    piece.tiles = min(size_, work.sequence.tiles - piece.first_tile);
    piece.count = static_cast<std::int32_t>(static_cast<std::uint32_t>(work.sequence.tiles + size_ - 1) /
                                            static_cast<std::uint32_t>(size_));
    piece.slot = row_block_ * p.slot_step + chunk_;
    piece.paired = p.pairs != 0 && piece.count == 2 ? 1 : 0;
    return piece.tiles > 0;
  }

  /// The next output of the chunk, which counts in outputs, that has rows.
  __device__ bool place_whole(const DecodeParams& p, Work& work) {
    while (!chunk_done()) {
      Piece& piece = work.piece;
      piece.b = quotient(position_, p.line_div);
      place_output(p, position_ - piece.b * lines_, piece);
      ++position_;
      work.sequence = read_sequence(p, piece.b);
      piece.tiles = work.sequence.tiles;
      piece.count = 1;
      if (piece.tiles > 0) return true;
    }
    return false;
  }

  /// The piece at the position in the line of tiles.
  __device__ Piece find(const DecodeParams& p) const {
    const int lane = threadIdx.x % 32;
    std::int32_t base = 0;
    for (std::int32_t b0 = 0;; b0 += 32) {
      const std::int32_t own = b0 + lane < p.batch ? padded_tiles(p, b0 + lane) * lines_ : 0;
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
        return describe(p, b0 + found, start, quotient(__shfl_sync(0xFFFFFFFFU, own, found), p.line_div));
      }
      base += __shfl_sync(0xFFFFFFFFU, sum, 31);
    }
  }
  __device__ Piece describe(const DecodeParams& p, std::int32_t b, std::int32_t start, std::int32_t line) const {
    Piece piece;
    const std::int32_t output = (position_ - start) / line;
    const std::int32_t line_begin = start + output * line;
    const std::int32_t first_chunk = line_begin / size_;
    piece.b = b;
    place_output(p, output, piece);
    piece.first_tile = position_ - line_begin;
    piece.tiles = min(end_, line_begin + line) - position_;
    piece.index = chunk_ - first_chunk;
    piece.count = (line_begin + line - 1) / size_ - first_chunk + 1;
    piece.slot = row_block_ * p.slot_step + chunk_ + b * lines_ + output;
    piece.paired = 0;
    return piece;
  }
  __device__ void place_output(const DecodeParams& p, std::int32_t output, Piece& piece) const {
    const std::int32_t row_block = quotient(output, p.head_div);
    piece.row_block = row_block_ + row_block;
    piece.head = output - row_block * p.kv_heads;
  }

  Cut cut_;
  std::int32_t lines_, fixed_, size_, total_, chunk_, row_block_, position_, end_;
};

}  // namespace mpfa::sm90
