#include "cuda/sm90/decode/plan.h"

#include <algorithm>

#include "cuda/sm90/decode/pieces.h"
#include "cuda/sm90/expand/shapes.h"
#include "cuda/sm90/verify/clusters.h"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {
namespace {

// Tiles of an output: up to which it has one block where that leaves no more than half of them idle, and up to which
// most of its time is its begin and end.
constexpr std::int32_t kOneBlock = 16, kFew = 64;

/// Which kernel the rows of a KV head go to, and how many of them a block takes.
void choose_kernel(const DecodeShape& shape, std::int64_t rows, std::int32_t multiprocessors, DecodeLaunch& l) {
  const bool plain = shape.verify && !shape.masked && !shape.rounded;
  if (plain && expands_all_rows(shape.head_dim, shape.operands)) {
    l.verify = l.expand = true, l.row_tiles = kExpandRows / 8;
    return;
  }
  const bool exists = shape.masked    ? has_masked_verify_kernel(shape.head_dim, shape.operands)
                      : shape.rounded ? has_rounded_verify_kernel(shape.head_dim, shape.operands)
                                      : has_verify_kernel(shape.head_dim, shape.operands);
  const std::int64_t outputs = static_cast<std::int64_t>(shape.batch) * shape.kv_heads;
  const bool fixed = shape.fixed_split_keys > 0;  // then rows must not depend on the batch
  l.verify =
      shape.verify && exists &&
      (fixed ? rows > kFewRows
             : is_verify_faster(shape.head_dim, rows, shape.operands, outputs, seen_keys(shape), multiprocessors));
  if (!l.verify) {
    l.row_tiles = choose_row_tiles(shape.head_dim, shape.operands, rows);
    return;
  }
  const std::int32_t most = verify_row_tiles(shape.head_dim, rows, shape.operands);
  l.row_tiles =
      fixed ? most : verify_row_tiles(shape.head_dim, rows, shape.operands, outputs, seen_keys(shape), multiprocessors);
  if (shape.masked) l.row_tiles = std::min(l.row_tiles, most_masked_row_tiles(shape.operands));
  if (shape.masked || shape.rounded || l.row_tiles < most) return;
  const std::int32_t tiles = expand_row_tiles(rows, outputs, seen_keys(shape), multiprocessors, fixed);
  l.expand = has_expand_kernel(shape.head_dim, shape.operands) && is_expand_faster(rows, shape.operands, tiles);
  if (l.expand && shape.uncentred_groups) {
    l.expand = false, l.row_tiles = 4;  // passes of the verify kernel, which scales in f32
  } else if (l.expand) {
    l.row_tiles = tiles;
  }
}

/// Teams of a block for `outputs`. A fixed split has one, since its sums must not depend on the number of outputs.
std::int32_t choose_teams(const DecodeShape& shape, const DecodeLaunch& l, std::int64_t outputs) {
  if (l.expand) return 1;
  if (l.verify && l.fixed_split == 0) {
    return verify_teams(shape.head_dim, l.row_tiles, shape.operands.value, outputs, l.blocks);
  }
  if (l.row_tiles > 1 || l.fixed_split > 0 || outputs <= l.blocks) return 1;
  for (const std::int32_t teams : {2, 4}) {  // a whole output for each
    if (outputs <= teams * l.blocks && outputs * 17 >= teams * l.blocks * 16) return teams;
  }
  if (l.few) return outputs <= 2 * l.blocks ? 2 : 4;
  // With parts of outputs, or several, teams gain the less the fewer warps a block has: 16, 8 to 12, 4.
  const std::int32_t row_bits =
      shape.head_dim * (operand_info(shape.operands.key).bits + operand_info(shape.operands.value).bits);
  if (row_bits <= 1024) return 8 * outputs <= 9 * l.blocks ? 1 : outputs <= 2 * l.blocks ? 2 : 4;
  return row_bits <= 2048 && outputs > 2 * l.blocks ? 2 : 1;
}

/// log2 of the blocks that an output of few tiles has in a direct call: one, which has nobody to wait for, or a
/// cluster. -1: as many as the grid has.
std::int32_t choose_cluster(const DecodeShape& shape, std::int64_t tiles, std::int64_t lines,
                            std::int32_t multiprocessors) {
  const std::int32_t head_dim = kernel_head_dim(shape.head_dim);
  if (!has_clusters(head_dim, shape.operands)) return tiles <= kOneBlock ? 0 : -1;
  std::int32_t log = kClusterLog;
  while (log > 1 && (lines << log) * 8 > multiprocessors * 7) --log;  // those that can be there at once
  const std::int32_t row_bits =
      head_dim * (operand_info(shape.operands.key).bits + operand_info(shape.operands.value).bits);
  if (tiles <= (log > 1 ? std::min(8, 16384 / row_bits) : kOneBlock)) return 0;
  // 16 blocks need a GPC almost to themselves.
  const bool most = shape.batch == 1 && head_dim <= 128 && lines << kMostClusterLog <= multiprocessors / 2;
  if (most && seen_keys(shape) <= kMostClusterKeys) return kMostClusterLog;
  return 2 * lines <= multiprocessors && tiles <= 32 << log ? log : -1;
}

constexpr std::size_t align(std::size_t n) {
  return (n + 255) / 256 * 256;
}

}  // namespace

DecodeLaunch plan_decode(const DecodeShape& shape, std::int32_t multiprocessors) {
  DecodeLaunch l;
  const std::int64_t rows = static_cast<std::int64_t>(shape.group) * shape.max_q;
  choose_kernel(shape, rows, multiprocessors, l);
  const std::int64_t block_rows = 8 * l.row_tiles;
  l.row_blocks = static_cast<std::int32_t>((rows + block_rows - 1) / block_rows);
  const std::int64_t lines = static_cast<std::int64_t>(shape.batch) * shape.kv_heads * l.row_blocks;
  const std::int64_t tiles = (seen_keys(shape) + kTileKeys - 1) / kTileKeys + 1;  // a window begins inside a tile
  l.tiles = static_cast<std::int32_t>(tiles);
  l.few = tiles - 1 <= kFew;
  // A row's keys lie in at most ceil(tiles / chunk) + 1 chunks.
  l.least_chunk = static_cast<std::int32_t>(std::max<std::int64_t>((tiles + kMaxSplits - 2) / (kMaxSplits - 1), 1));
  // The end of a piece of many outputs takes as long as 16 tiles.
  const bool many = l.verify && l.row_tiles * kernel_head_dim(shape.head_dim) >= 4 * 128;
  if (many && shape.fixed_split_keys == 0) l.least_chunk = std::max(l.least_chunk, 16);
  l.fixed_split = std::max(shape.fixed_split_keys / kTileKeys, shape.fixed_split_keys > 0 ? l.least_chunk : 0);

  l.blocks = static_cast<std::int32_t>(std::min<std::int64_t>(multiprocessors, lines * tiles));
  l.teams = choose_teams(shape, l, lines);
  // Of 128 channels two row blocks are faster as clusters of the verify kernel.
  l.groups = l.row_tiles == 2 && (l.row_blocks == 1 || shape.head_dim <= 64) && l.fixed_split == 0 &&
             lines <= l.blocks &&
             multiplies_in_groups(kernel_head_dim(shape.head_dim), shape.operands.key, l.row_tiles);
  // Blocks of a cluster are neighbours, so that row blocks of the same keys are not: with four that costs more.
  const bool merges = l.expand ? expands_all_rows(shape.head_dim, shape.operands)
                               : l.verify && !l.groups && l.row_blocks <= 2 &&
                                     has_verify_clusters(kernel_head_dim(shape.head_dim), shape.operands);
  if (merges && l.fixed_split == 0 && 2 * lines <= l.blocks) {
    const MergeSplit merge = split_to_merge(static_cast<std::int32_t>(lines), l.blocks, multiprocessors);
    l.merge_log = merge.log;
    if (merge.log > 0) l.blocks = static_cast<std::int32_t>(lines) * merge.splits;
  }
  l.merge_tiles = l.row_tiles == 1 ? 0.7F : 1.0F;
  // The kernels that cut outputs by constants of the plan cannot leave blocks idle when they know the lengths.
  if (l.fixed_split == 0 && (!l.verify || l.groups)) {
    l.cluster_log = choose_cluster(shape, tiles - 1, lines, multiprocessors);
    const std::int64_t useful = lines * useful_splits(static_cast<std::int32_t>(tiles), l.merge_tiles);
    l.blocks = static_cast<std::int32_t>(std::min<std::int64_t>(l.blocks, useful));
    if (l.cluster_log > 0) l.blocks = std::max(l.blocks, static_cast<std::int32_t>(lines << l.cluster_log));
  }
  const std::int64_t chunks =
      l.fixed_split > 0 ? lines * ((tiles + l.fixed_split - 1) / l.fixed_split) : l.blocks * l.teams;
  const auto slots = static_cast<std::size_t>(chunks + lines);
  l.slots = static_cast<std::int32_t>(chunks + lines);
  // Direct calls count the warps of an output, and there are no direct calls of more outputs than blocks.
  const std::int64_t counted = lines <= l.blocks ? lines * decode_warps(64, 1) * kArrivalStep : lines;
  const auto channels = static_cast<std::size_t>(kernel_head_dim(shape.head_dim));
  l.arrivals = align(sizeof(std::int32_t));
  l.states = l.arrivals + align(static_cast<std::size_t>(counted) * sizeof(std::uint64_t));
  l.outs = l.states + align(slots * block_rows * (channels / 32) * 2 * sizeof(float));
  l.workspace_bytes = l.outs + align(slots * block_rows * channels * sizeof(float));
  return l;
}

}  // namespace mpfa::sm90
