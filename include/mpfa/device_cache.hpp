// Writing tokens into a paged cache in GPU memory, for engines that own pages and page tables there.
#pragma once

#include <cstdint>

#include "mpfa/attention.hpp"
#include "mpfa/pages.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

/// One call of write_slots. Everything behind a pointer is device memory.
struct SlotWrite {
  MutablePages k_pages, v_pages;               // of make_pages, layout linear
  TensorView k;                                // [1, n, kv_heads, head_dim], f32, bf16 or f16
  TensorView v;                                // [1, n, kv_heads, head_dim_v], the same dtype
  const std::int64_t* slot_mapping = nullptr;  // [n] page * page_size + slot, each at most once; others are skipped
  const float* k_mean = nullptr;               // [kv_heads, head_dim], subtracted before quantising; null: zero
  const float* v_mean = nullptr;               // [kv_heads, head_dim_v]
  unsigned long long* counters = nullptr;  // NOLINT: of atomicAdd. [3] added to: fields of QuantiseCounters, or null
  void* stream = nullptr;                  // cudaStream_t; null: the default stream
};

/// Centres, quantises and writes tokens in one launch, with the bytes that PagedCache::write_slots writes on the host.
/// Enqueues and returns; allocates nothing. For K and V in mxfp4 or both in nvfp4 (any scale rule), head dims a
/// multiple of 32, rows of k, v and means aligned to 16 bytes. unsupported: another device, format or layout, or no
/// card.
[[nodiscard]] Status write_slots(const SlotWrite& write, Device device);

}  // namespace mpfa
