// Thin names for the few instructions that CUDA C++ has no function for. Addresses are 32-bit shared addresses.
#pragma once

#include <cstdint>

namespace mpfa::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Makes a value opaque, so that the compiler keeps it instead of computing it again where it is used.
__device__ __forceinline__ void keep_in_register(std::uint32_t& x) {
  asm("" : "+r"(x));
}
__device__ __forceinline__ void keep_in_register(std::int32_t& x) {
  asm("" : "+r"(x));
}
template <class T>
__device__ __forceinline__ void keep_in_register(const T*& x) {
  asm("" : "+l"(x));
}

/// Keeps what depends on the value from being computed, and held in registers, before this.
__device__ __forceinline__ void compute_here(std::int32_t& x) {
  asm volatile("" : "+r"(x));
}

/// A value that all lanes have, in a uniform register. The reduction is never moved or computed again.
__device__ __forceinline__ std::uint32_t same_in_warp(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("redux.sync.max.u32 %0, %1, 0xFFFFFFFF;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ std::int32_t same_in_warp(std::int32_t x) {
  return static_cast<std::int32_t>(same_in_warp(static_cast<std::uint32_t>(x)));
}

/// The upper bit of byte kByte of x in all bits.
template <int kByte>
__device__ __forceinline__ std::uint32_t spread_sign(std::uint32_t x) {
  std::uint32_t y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "n"((8 + kByte) * 0x1111));
  return y;
}

/// 16 bytes from global to shared memory, past the first-level cache.
__device__ __forceinline__ void copy_async16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// The first `bytes` of 16 (kWhole) or 8, zeros behind them; nothing else is read.
template <bool kWhole>
__device__ __forceinline__ void copy_async_part(std::uint32_t to, const void* from, std::int32_t bytes) {
  if constexpr (kWhole) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }
}
/// The first `bytes` of kBytes, 4 or 16, likewise, through the first-level cache.
template <int kBytes>
__device__ __forceinline__ void copy_async_part4(std::uint32_t to, const void* from, std::int32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes)
               : "memory");
}
/// The same through the first-level cache, for copies that share sectors.
__device__ __forceinline__ void copy_async16_cached(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kPending` of the newest groups of this thread are unfinished.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// A load that stays where it is written.
__device__ __forceinline__ float4 load_shared(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_words(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// Transposes an 8x8 matrix of 16-bit elements held by the warp.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// c [16 x 8] += a [16 x 16] b [16 x 8], f16 operands, f32 sums.
__device__ __forceinline__ void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                             std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The same with bf16 operands.
__device__ __forceinline__ void multiply_add_bf16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                                  std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Barrier `id` of as many threads of the block, whole warps.
template <int kThreads>
__device__ __forceinline__ void sync_some(int id) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
/// The same, and whether x is true for one of them.
template <int kThreads>
__device__ __forceinline__ bool any_of_some(int id, bool x) {
  int any;
  asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; barrier.red.or.pred.aligned p, %1, %2, p; selp.s32 %0, 1, 0, p;}"
               : "=r"(any)
               : "r"(id), "n"(kThreads), "r"(x ? 1 : 0)
               : "memory");
  return any != 0;
}

/// Adds n and gives the value before; orders what the thread saw or wrote before for who sees the sum.
__device__ __forceinline__ std::uint64_t add_acq_rel(std::uint64_t* to, std::uint64_t n) {
  std::uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(to), "l"(n) : "memory");
  return before;
}
/// `desired` if it is `expected`; gives what was found, orders as add_acq_rel.
__device__ __forceinline__ std::uint64_t compare_and_swap(std::uint64_t* at, std::uint64_t expected,
                                                          std::uint64_t desired) {
  std::uint64_t found;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(found)
               : "l"(at), "l"(expected), "l"(desired)
               : "memory");
  return found;
}

/// Barrier of all threads of a cluster in two halves.
__device__ __forceinline__ void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
/// Says no more than that the thread is there.
__device__ __forceinline__ void arrive_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
/// What a shared address of this block is in block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t remote_address(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void store_remote(std::uint32_t to, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_remote(std::uint32_t to, float2 v) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}

/// A barrier in shared memory that opens once when `bytes` have come by store_async; for other blocks that pass the
/// cluster's barrier after it.
__device__ __forceinline__ void start_barrier(std::uint32_t barrier, std::int32_t bytes) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
      "fence.mbarrier_init.release.cluster;\n\t"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n\t"
      "@!p bra again;}" ::"r"(barrier)
      : "memory");
}
/// To another block's shared memory, counted by its barrier.
__device__ __forceinline__ void store_async(std::uint32_t to, float4 v, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async(std::uint32_t to, float2 v, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(v.x), "f"(v.y), "r"(barrier)
               : "memory");
}

/// Asks for a line of 128 bytes of the second-level cache; any address will do.
__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace mpfa::ptx
