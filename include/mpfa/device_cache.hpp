// Writing tokens into a paged cache in GPU memory, for engines that own pages and page tables there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mpfa/attention.hpp"
#include "mpfa/recipe.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

/// OperandPages that are written. Address of (page, head) = base + page * page_stride + head * head_stride, bytes.
struct MutableOperandPages {
  std::byte* data = nullptr;
  std::int64_t data_page_stride = 0, data_head_stride = 0, data_row_stride = 0;
  std::byte* scales = nullptr;
  std::int64_t scale_page_stride = 0, scale_head_stride = 0, scale_row_stride = 0;
  const float* global = nullptr;  // [kv_heads] fp32 scale per head, null = 1
};

/// One call of write_slots. All pointers are device memory.
struct SlotWrite {
  Recipe recipe;  // formats of K and V; nothing that PagedCache::write_slots refuses
  std::int64_t num_pages = 0, page_size = 64;
  TensorView k;                                // [1, n, kv_heads, head_dim], f32, bf16 or f16
  TensorView v;                                // [1, n, kv_heads, head_dim_v], the same dtype
  const std::int64_t* slot_mapping = nullptr;  // [n] page * page_size + slot, each at most once; others are skipped
  const float* k_mean = nullptr;               // [kv_heads, head_dim], subtracted before quantising; null: zero
  const float* v_mean = nullptr;               // [kv_heads, head_dim_v]
  MutableOperandPages k_pages, v_pages;
  unsigned long long* counters = nullptr;  // [3] added to: the fields of QuantiseCounters in order; null: not wanted
  void* stream = nullptr;                  // cudaStream_t; null: the default stream
};

/// Centres, quantises and writes tokens in one launch, with the bytes that PagedCache::write_slots writes on the host.
/// Enqueues and returns; allocates nothing. For K and V in mxfp4 or nvfp4 (any scale rule), head dims a multiple of 32,
/// rows aligned to 16 bytes. unsupported: another device or format, or no card.
[[nodiscard]] Status write_slots(const SlotWrite& write, Device device);

}  // namespace mpfa
