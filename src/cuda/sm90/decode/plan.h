// What a call needs by its capacity: kernel, grid, workspace. No CUDA in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/sm90/decode/config.h"

namespace mpfa::sm90 {

/// What the schedule depends on.
struct DecodeShape {
  std::int32_t head_dim = 0;
  OperandPair operands;
  std::int32_t batch = 0, kv_heads = 0, group = 0, max_q = 0, max_kv = 0;
  std::int32_t fixed_split_keys = 0;  // > 0: rows do not depend on their batch mates; a multiple of kTileKeys
  std::int32_t window_left = -1;      // tokens before its own that a row sees; -1: all
  bool verify = false;                // may go to the verify kernel, if there is one: see attention.cpp
  bool masked = false;                // with mask tensor, softcap or ALiBi
  bool rounded = false;               // P in e4m3, or queries in nvfp4
  bool uncentred_groups = false;      // K has scales of groups, which f16 may not round where biases make the logits
};

struct DecodeLaunch {
  bool verify = false;
  bool expand = false;  // and there to the kernel for many rows
  bool groups = false;  // but plain pages are for the decode kernel with two row tiles, which is faster
  std::int32_t row_tiles = 0, row_blocks = 0, blocks = 0, least_chunk = 0, fixed_split = 0;
  std::int32_t tiles = 0;         // that rows of a sequence visit at most
  bool few = false;               // of them: ends of pieces take longer, so that idle blocks matter less
  std::int32_t teams = 1;         // of a block; kernels that have none take one
  float merge_tiles = 0.0F;       // see useful_splits
  std::int32_t slots = 0;         // of partial results
  std::int32_t cluster_log = -1;  // a direct call has 2^cluster_log blocks of every output as a cluster; -1: all blocks
  std::int32_t merge_log = 0;     // 2^merge_log blocks of an output are a cluster in the kernels for more than 8 rows
  std::size_t arrivals = 0, states = 0, outs = 0;  // offsets in the workspace
  std::size_t workspace_bytes = 0;
};

/// Head dim that the kernel for `head_dim` has room for; the plain kernel takes no other.
constexpr std::int32_t kernel_head_dim(std::int32_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/// Keys of tiles, or of halves of them, that lie inside pages of `page_size`; 0: of neither.
constexpr std::int32_t plain_keys(std::int64_t page_size) {
  return page_size % kTileKeys == 0 ? kTileKeys : page_size % (kTileKeys / 2) == 0 ? kTileKeys / 2 : 0;
}

/// Keys that the rows of a sequence see at most, all together.
constexpr std::int64_t seen_keys(const DecodeShape& s) {
  const std::int64_t window = std::int64_t{s.window_left} + s.max_q;
  return s.window_left < 0 || window > s.max_kv ? s.max_kv : window;
}

/// Fixes grid and workspace for any lengths up to max_kv on a device with `multiprocessors`.
[[nodiscard]] DecodeLaunch plan_decode(const DecodeShape& shape, std::int32_t multiprocessors);

}  // namespace mpfa::sm90
