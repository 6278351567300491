// Asynchronous MMAs of a warpgroup: d [64 x N] += a [64 x 16] b [16 x N] with a in registers (the lane's 16-bit pairs
// of rows 16 w + g and g + 8, as mma.m16n8k16 has them) and b in shared memory.
//
// b is stored as 8x8 matrices of 128 bytes, a row being 8 values of one of the N columns: first those of inner indices
// 0 to 7 of all columns, then those of 8 to 15.
#pragma once

#include <cstdint>

namespace mpfa::ptx {

inline constexpr std::uint32_t kColumnStep = 128 / 16;  // of a descriptor, to the next 8 columns
/// Lower half of the descriptor of b at a shared address, for `columns` columns. 16 bytes further on in memory are 1.
__device__ __forceinline__ std::uint32_t matrix_descriptor(std::uint32_t address, std::uint32_t columns) {
  // Bytes to the next 8 inner indices, by 16. In a cluster an address has the block's rank above its 18 bits.
  return columns << 16 | (address & 0x3FFFFU) >> 4;
}
/// All of it. Sums of 64 bits are made in the registers that the MMA reads, without copies.
__device__ __forceinline__ std::uint64_t whole_descriptor(std::uint32_t lower) {
  return std::uint64_t{kColumnStep} << 32 | lower;
}

/// Before the first MMA, and after registers of one were written by other instructions.
__device__ __forceinline__ void fence_mma() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_mma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kPending of the newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wait_mma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving what it does with sums across this place.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// add 0: the sums begin with this product.
__device__ __forceinline__ void multiply_async(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %13, 0;"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
      "p, "
      "1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_async(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_async(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/// The same with bf16 operands.
__device__ __forceinline__ void multiply_async_bf16(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b,
                                                    int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_async_bf16(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                                    int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/// Shared memory written by this thread becomes visible to asynchronous MMAs, after a barrier.
__device__ __forceinline__ void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Four 8x8 matrices of 16-bit elements, transposed, to shared memory; lane l gives the address of row l % 8 of matrix
/// l / 8.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// base + a * b, as one instruction.
__device__ __forceinline__ const std::uint8_t* multiply_add_wide(std::int32_t a, std::int32_t b,
                                                                 const std::uint8_t* base) {
  const std::uint8_t* sum;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(a), "r"(b), "l"(base));
  return sum;
}

/// kBytes, 4, 8 or 16, from global to shared memory.
template <int kBytes>
__device__ __forceinline__ void copy_async_small(std::uint32_t to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}

/// The same if `bytes` is kBytes, by a predicate instead of a branch.
template <int kBytes>
__device__ __forceinline__ void copy_async_if(std::int32_t bytes, std::uint32_t to, const void* from) {
  asm volatile("{.reg .pred p; setp.eq.s32 p, %3, %2; @p cp.async.ca.shared.global [%0], [%1], %2;}" ::"r"(to),
               "l"(from), "n"(kBytes), "r"(bytes)
               : "memory");
}

}  // namespace mpfa::ptx
