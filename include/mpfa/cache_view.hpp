// What a kernel reads of a KV cache: pointers and strides, no ownership.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "mpfa/formats.hpp"

namespace mpfa {

/// K or V of every page: address of (page, head) = base + page * page_stride + head * head_stride, bytes.
struct OperandPages {
  const std::byte* data = nullptr;  // [num_pages, kv_heads, data_rows, data_row_bytes] by strides
  std::int64_t data_page_stride = 0, data_head_stride = 0, data_row_stride = 0;
  const std::byte* scales = nullptr;  // [num_pages, kv_heads, scale_rows, scale_row_bytes] by strides
  std::int64_t scale_page_stride = 0, scale_head_stride = 0, scale_row_stride = 0;
  const float* global = nullptr;  // [kv_heads] fp32 scale per head, null = 1

  [[nodiscard]] constexpr std::int64_t data_offset(std::int64_t page, std::int64_t head) const {
    return page * data_page_stride + head * data_head_stride;
  }
  [[nodiscard]] constexpr std::int64_t scale_offset(std::int64_t page, std::int64_t head) const {
    return page * scale_page_stride + head * scale_head_stride;
  }
  [[nodiscard]] ConstPageBytes page(std::int64_t page, std::int64_t head) const {
    return {data + data_offset(page, head), data_row_stride,
            scales == nullptr ? nullptr : scales + scale_offset(page, head), scale_row_stride};
  }
  [[nodiscard]] float global_scale(std::int64_t head) const { return global == nullptr ? 1.0F : global[head]; }
};

/// Per-sequence state that travels with the pages. Vectors are fp32; a null pointer means zero (alpha: one).
/// Stored keys are K' = rotate(k - k_mean), stored values V' = rotate_v(v - v_mean).
struct SequenceView {
  const float* k_mean = nullptr;   // [kv_heads, head_dim]
  const float* q_mean = nullptr;   // [q_heads, head_dim]
  const float* v_mean = nullptr;   // [kv_heads, head_dim_v]
  const float* v_alpha = nullptr;  // [kv_heads, head_dim_v]  V' ~ alpha * dequantise(codes) + beta
  const float* v_beta = nullptr;   // [kv_heads, head_dim_v]

  // bf16 copies of K' and V' for tokens [0, sink) and [wide_begin, length):
  std::int64_t sink = 0;
  const std::uint16_t* sink_k = nullptr;  // [sink, kv_heads, head_dim]
  const std::uint16_t* sink_v = nullptr;  // [sink, kv_heads, head_dim_v]
  std::int64_t wide_begin = 0;
  const std::uint16_t* wide_k = nullptr;  // [length - wide_begin, kv_heads, head_dim]
  const std::uint16_t* wide_v = nullptr;  // [length - wide_begin, kv_heads, head_dim_v]
  std::int64_t packed_end = 0;            // tokens [0, packed_end) are in the pages
};

/// A query whose last visible key is `last` reads key j from the pages when
///   sink <= j < packed_limit(last), and its bf16 copy otherwise.
/// The limit depends on the query's own position only, so later tokens never change an earlier row.
[[nodiscard]] constexpr std::int64_t packed_limit(std::int64_t last_key, std::int64_t unit, std::int64_t recent,
                                                  std::int64_t packed_end) {
  const std::int64_t seen = last_key + 1 - recent;
  const std::int64_t whole = seen <= 0 ? 0 : seen / unit * unit;
  return whole < packed_end ? whole : packed_end;
}

struct CacheView {
  BlockFormat k_format, v_format;
  // Latent attention: V is the first head_dim_v channels of K, in the pages (v says the same as k) and in the bf16
  // copies (sink_v and wide_v are not read). A rotated V has K's rotation; v_mean is the start of k_mean.
  bool shared_kv = false;
  std::int64_t num_pages = 0, page_size = 0;
  std::int64_t kv_heads = 0, head_dim = 0, head_dim_v = 0;
  OperandPages k, v;
  // dS of centred queries, [num_pages, kv_heads, page_size, group]: bf16 bits, or fp32 when rank_one_wide
  // (RankOne::split); strides in elements; null when the recipe has no rank-one term.
  const void* rank_one = nullptr;
  bool rank_one_wide = false;
  std::int64_t rank_one_page_stride = 0, rank_one_head_stride = 0, group = 1;

  /// dS of (page, KV head, slot) for query head `member` of the group.
  [[nodiscard]] float rank_one_at(std::int64_t page, std::int64_t head, std::int64_t slot, std::int64_t member) const {
    const std::int64_t i = page * rank_one_page_stride + head * rank_one_head_stride + slot * group + member;
    if (rank_one_wide) return static_cast<const float*>(rank_one)[i];
    return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(rank_one)[i]) << 16);
  }

  // Means of V of v_mean=page, [num_pages, kv_heads, head_dim_v] bf16 bits, in the basis of V'; strides in elements. A
  // key read from page p has the value V' + mean of p, so p's keys add (sum of their P as rounded) * mean to the
  // output.
  const std::uint16_t* v_page_means = nullptr;
  std::int64_t v_page_mean_page_stride = 0, v_page_mean_head_stride = 0;

  const std::int32_t* page_table = nullptr;  // [batch, page_table_stride]; entries past a length may be anything
  std::int64_t page_table_stride = 0;
  const std::int64_t* lengths = nullptr;    // [batch] tokens
  const SequenceView* sequences = nullptr;  // [batch] or null: no centring, no bf16 tokens, all packed
};

}  // namespace mpfa
