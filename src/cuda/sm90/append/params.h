// What the kernels that write caches are told: plain data for launch parameters.
#pragma once

#include <cstdint>

#include "cuda/common/divisor.h"
#include "mpfa/formats.hpp"
#include "mpfa/rope.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa::sm90 {

/// Channels that a thread quantises.
inline constexpr int kChunk = 16;
/// Channels of a row that a warp holds; longer rows take several warps.
inline constexpr int kWarpChannels = 32 * kChunk;
/// Tokens of a block, at most.
inline constexpr int kMostTile = 256;

/// Formats with a kernel, block size apart.
enum class AppendFormat : std::uint8_t {
  bf16,
  f16,
  e4m3,         // f32 scale
  e4m3_static,  // scale of the head
  int8,         // f32 scale
  int8_group,   // f16 scale
  int4,
  int4_group,
  e2m1_e8m0,
  e2m1_e4m3,
  e2m1_e4m3_four_over_six,
  e2m1_f32,
  e3m0_f32,
};

/// How a row [d] becomes codes and scales.
struct RowFormat {
  AppendFormat format;
  ScaleRule rule;
  std::int32_t d;
  std::int32_t lanes;        // of a warp for one row, a power of two
  std::int32_t lanes_shift;  // log2 of lanes
  std::int32_t parts;        // warps for one row
  std::int32_t group;        // lanes that share a scale, a power of two
  std::int32_t group_shift;  // log2 of group
  const float* mean;         // [heads, d] or null
  const float* global;       // [heads] or null
};

/// K or V of one call. Strides of x in elements, of pages in bytes.
struct AppendOperand {
  RowFormat row;
  const void* x;  // [n, heads, d]
  std::int64_t x_row, x_head;
  std::uint8_t* data;  // [num_pages, heads, page_size, row bytes]
  std::uint8_t* scales;
  std::int64_t data_head, scale_head;
  std::int32_t data_page, data_row, scale_page, scale_row;
  // Of the launch. A column is a warp's share of the row of a token; a block takes some of them for a tile of tokens,
  // in steps of those that its warps take at a time.
  std::int32_t columns, lines, blocks;  // lines: warps of a column beside each other
  std::int32_t steps, longer, tile;     // of a tile; the first `longer` tiles have one more; tokens, at most
  Divisor across, groups;               // columns of a block, and groups of them
};

/// Tables, and queries to rotate. Strides in elements.
struct AppendRope {
  const void *cos, *sin;  // [positions, half]
  std::int64_t cos_row, cos_step, sin_row, sin_step, rows;
  std::int32_t begin, half;
  RopeStyle style;
  DType dtype, q_dtype, q_out_dtype, sin_dtype;
  bool table_vectors;             // rows of the tables may be read 16 bytes at a time
  bool k_wide;                    // and K turns 16 channels at a time
  bool q_wide;                    // and Q 8 channels
  const std::int64_t* positions;  // [n]
  const void* q;                  // [q_rows, q_heads, d] or null
  void* q_out;
  std::int64_t q_row, q_head, q_step, q_out_row, q_out_head, q_out_step;
  std::int32_t q_rows, q_heads;
  Divisor shares_div, groups_div;   // threads for a row of Q, and groups of its heads; of the launch
  const std::int64_t* q_positions;  // [q_rows]; null: positions and slots of the tokens
};

struct AppendParams {
  AppendOperand operand[2];  // K, V
  std::int32_t operands;     // 1: K alone
  AppendRope rope;
  const std::int64_t* slots;  // [n]
  std::int32_t end_slot;      // num_pages * page_size
  Divisor page_div;
  std::int32_t n, heads, page_size;
  unsigned long long* counters;  // [3] non-finite blocks, saturated elements, flushed blocks; or null
};

/// 16-bit pages that become packed ones in place. Strides in bytes.
struct ConvertParams {
  RowFormat row;
  std::uint8_t* pages;
  std::int64_t page_stride, x_head, x_row;      // of what is there
  std::int64_t data_head, data_row;             // of what comes
  std::int64_t scales, scale_head, scale_row;   // scales: from the start of the page
  std::int32_t num_pages, page_size, heads, n;  // n: ids
  std::int32_t page_bytes;
  const std::int32_t* ids;
  unsigned long long* counters;
};

}  // namespace mpfa::sm90
