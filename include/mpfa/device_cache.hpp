// Writing tokens into a paged cache in GPU memory, for engines that own pages and page tables there.
#pragma once

#include <cstdint>

#include "mpfa/attention.hpp"
#include "mpfa/pages.hpp"
#include "mpfa/rope.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

/// One call of write_slots. Everything behind a pointer is device memory, also that of `rope`, but not `rope` itself.
struct SlotWrite {
  MutablePages k_pages, v_pages;  // of make_pages, layout linear; formats chosen apart
  TensorView k;                   // [1, n, kv_heads, head_dim], f32, bf16 or f16
  TensorView v;                   // [1, n, kv_heads, head_dim_v], the same dtype; no data: K alone (latent)
  const std::int64_t* slot_mapping = nullptr;  // [n] page * page_size + slot, each at most once; others are skipped
  const float* k_mean = nullptr;               // [kv_heads, head_dim], subtracted before quantising; null: zero
  const float* v_mean = nullptr;               // [kv_heads, head_dim_v]
  /// Turns K, and Q if it has one, in the same launch. positions [n] is needed; tokens and queries at positions that
  /// the tables do not have are skipped, and with null q_positions the queries of skipped slots.
  const Rope* rope = nullptr;
  unsigned long long* counters = nullptr;  // NOLINT: of atomicAdd. [3] added to: fields of QuantiseCounters, or null
  void* stream = nullptr;                  // cudaStream_t; null: the default stream
};

/// Rotates, centres, quantises and writes tokens in one launch, with the bytes that PagedCache::write_slots writes on
/// the host (except for which NaN a rotation gives). Enqueues and returns; allocates nothing.
/// formats    bf16, fp16, fp8_e4m3, fp8_e4m3_static, int8, int4, int8_g*, int4_g*, every kind of mxfp4, nvfp4 and e3m0;
///            not those with scales along the keys or shared by tokens
/// head dims  a multiple of 16; at most 512 where the whole row shares a scale or has none
/// alignment  16 bytes for rows of k, v and means, 8 or 16 for rows of codes, the size of a scale for rows of scales
/// Memory of the host or of another device than the current one is refused. unsupported: another device, format or
/// layout, no card, or built without CUDA kernels.
[[nodiscard]] Status write_slots(const SlotWrite& write, Device device);

/// One call of convert_pages on a device. Everything behind a pointer is device memory.
struct PageConversion {
  MutablePages pages;                 // bf16 or fp16, layout linear, as the host's convert_pages takes them
  BlockFormat format;                 // of 8 or 4 bits, one that write_slots writes
  const std::int32_t* ids = nullptr;  // [n] each once; ids out of range are skipped
  std::int64_t n = 0;
  const float* mean = nullptr;             // [kv_heads, head_dim] subtracted first, or null
  const float* global = nullptr;           // [kv_heads] calibrated scales, finite and positive, or null = 1
  unsigned long long* counters = nullptr;  // NOLINT: as in SlotWrite
  void* stream = nullptr;
};

/// Converts pages in the memory they are in, in one launch, to the bytes of the host's convert_pages, and returns the
/// whole pool as pages of `format`. A page has at most 227 KB and lies at a multiple of 16 bytes; head dims as above.
[[nodiscard]] Result<MutablePages> convert_pages(const PageConversion& conversion, Device device);

}  // namespace mpfa
