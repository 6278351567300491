// What the decode kernel is given: one struct, pointers to device memory. Strides of q and out are in elements,
// those of pages in bytes. Shared by the launch code and the kernel, so plain data only.
#pragma once

#include <cstdint>

#include "cuda/common/divisor.h"
#include "mpfa/cache_view.hpp"

namespace mpfa::sm90 {

struct DecodePages {
  const std::uint8_t* data;    // [num_pages, kv_heads, page_size, bytes of a head's channels]
  const std::uint8_t* scales;  // [num_pages, kv_heads, page_size, scale_bytes] or null
  const float* global;         // [kv_heads] or null
  std::int64_t data_head, scale_head;
  std::int32_t data_page, data_row, scale_page, scale_row;
  // ScaleKind::group: bytes of a key's scales; one f32 for all channels, or else chunk c of 32 channels has scale
  // c >> scale_shift. scale_select: bytes of chunks 2 i, 2 i + 1 in the word that has their f16.
  std::int32_t scale_bytes, row_scale, scale_shift;
  std::uint32_t scale_select[4];
};

/// Mask tensor [batch, q_heads, sq, sk]; strides in bytes, 0 where it has one for all.
struct DecodeMask {
  const std::uint8_t* data;  // u8 (0: hidden) or f32 (added); null: none
  std::int64_t batch, head, row;
  std::int32_t key, additive;
  std::int32_t quads;  // 1: elements of keys 4 i to 4 i + 3 are aligned together; set by launch_decode
};

struct DecodeParams {
  const void* q;                        // [batch, sq, q_heads, d] or ragged [total_q, q_heads, d]
  std::int64_t q_batch, q_row, q_head;  // strides
  void* out;                            // as q
  std::int64_t out_batch, out_row, out_head;
  float* lse;                        // [batch, q_heads, sq] or [q_heads, total_q]; null: not wanted
  std::int64_t lse_rows;             // sq, or total_q when ragged
  const std::int64_t* cu_seqlens_q;  // [batch + 1]; null: dense
  const std::int64_t* lengths;       // [batch]
  const std::int32_t* page_table;    // [batch, page_table_stride]
  std::int64_t page_table_stride;
  const SequenceView* sequences;  // [batch], null: no means, all packed
  const float* sinks;             // [q_heads] or null
  const float* alibi_slopes;      // [q_heads] or null
  DecodeMask mask;
  DecodePages k, v;
  // dS of centred queries [num_pages, kv_heads, page_size, group], bf16 or (wide) f32, or null; strides in elements.
  const void* rank_one;
  std::int64_t rank_one_page, rank_one_head;
  std::int32_t rank_one_wide;
  // Means of V of pages, bf16 [num_pages, kv_heads, d], or null; strides in elements.
  const std::uint16_t* page_means;
  std::int64_t page_mean_page, page_mean_head;

  std::int32_t batch, kv_heads, q_heads, group, sq;
  std::int32_t head_dim;    // set by launch_decode; the kernel's own or, in the general kernel, less
  std::int32_t row_blocks;  // blocks of 8 * row tiles query rows of one KV head
  std::int32_t num_pages, page_size, max_kv;
  std::int32_t window_left, window_right;  // -1: all
  std::int32_t causal, q_bf16, round_q_bf16, out_type;
  std::int32_t round_q;    // to K's 8-bit format, or to nvfp4
  std::int32_t centre_q;   // by the q_mean of the sequence, before rounding
  float p_scale, p_unit;   // p_scale > 0: P times it is rounded to e4m3. p_unit: its inverse, or 1
  std::int32_t sum_codes;  // the denominator is the sum of the rounded P
  std::int32_t wide;       // 1: sequences keep tokens in bf16; the newest `recent` ones and those of an unfinished unit
  std::int32_t recent;
  std::int32_t plain_keys;             // of tiles that lie inside pages with rows side by side: 32, 16 or 0
  std::int32_t code_unit, scale_unit;  // powers of two that divide steps of pages and 16 rows; set by launch_decode
  std::int32_t finishes_logits;        // softcap, ALiBi or a mask tensor; set by launch_decode
  float scale;                         // softmax scale
  float softcap;
  Divisor page_div, group_div;   // of page_size and group
  Divisor commit_div;            // of the tokens that are packed together
  Divisor abreast_div;           // of the row blocks whose pieces are in neighbouring teams: all, or 1
  Divisor head_div, line_div;    // of kv_heads and kv_heads * row_blocks / abreast
  Divisor block_div, split_div;  // of teams / abreast and splits
  std::int32_t slot_step;        // result slots of a row block of those abreast

  std::int32_t splits;  // blocks of every output if all are equally long; 0: more outputs than blocks
  std::int32_t direct;  // 1: outputs may be cut by constants alone, see direct.cuh
  float merge_tiles;    // what a further piece of an output costs at its end, in the time of a tile of a block
  std::int32_t
      cluster_log;     // 2^cluster_log blocks of an output are a cluster: of direct calls, and see verify/cluster.cuh
  std::int32_t pairs;  // 1: two splits of an output are a cluster
  std::int32_t fixed_split;  // tiles of a split; 0: chosen from the lengths, so that every block is busy
  std::int32_t least_chunk;  // tiles: no row has more than kMaxSplits partial results
  std::int32_t* taken;       // chunks that blocks drew after their first one, zero at the start; of fixed splits
  std::uint64_t* arrivals;   // [batch * kv_heads * row_blocks], or of direct calls [.., warps, step], see last_arrival
  float* partial_out;        // [max_items, rows, d] not normalised
  float2* partial_state;     // [max_items, rows, d / 32] (maximum in the log2 domain, sum)
  Divisor even_div;          // of batch * splits
};

}  // namespace mpfa::sm90
