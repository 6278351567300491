// Asynchronous MMAs on tiles of f16 in shared memory, [half of 64 channels][64 keys][128 bytes] with the hardware's
// swizzle of 128 bytes: 16-byte place j of key r is at j ^ r % 8.
#pragma once

#include <cstdint>

#include "cuda/sm90/expand/config.h"
#include "cuda/sm90/verify/wgmma.cuh"

// Sums of an MMA in an instruction's text and as its operands.
#define MPFA_PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MPFA_PLACES_32 MPFA_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MPFA_PLACES_64                                                                 \
  MPFA_PLACES_32                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MPFA_PLACES_128                                                                          \
  MPFA_PLACES_64                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MPFA_SUMS_4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define MPFA_SUMS_16(d, i) MPFA_SUMS_4(d, i), MPFA_SUMS_4(d, (i) + 4), MPFA_SUMS_4(d, (i) + 8), MPFA_SUMS_4(d, (i) + 12)
#define MPFA_SUMS_32(d, i) MPFA_SUMS_16(d, i), MPFA_SUMS_16(d, (i) + 16)
#define MPFA_SUMS_64(d, i) MPFA_SUMS_32(d, i), MPFA_SUMS_32(d, (i) + 32)

namespace mpfa::ptx {

/// Of a tile's matrix descriptors, the upper half: 1024 bytes to the next 8 keys, swizzle of 128 bytes.
inline constexpr std::uint64_t kSwizzled = std::uint64_t{1024 / 16 | 1U << 30} << 32;

/// K: B operand of 64 columns (keys), 16 channels an MMA.
__device__ __forceinline__ std::uint64_t keys_descriptor(std::uint32_t address) {
  return kSwizzled | (1U << 16 | (address & 0x3FFFFU) >> 4);
}
/// V: B operand of 128 columns or more (channels), 16 keys an MMA. The step between parts of 64 channels is said here.
template <int kKeys>
__device__ __forceinline__ std::uint64_t values_descriptor(std::uint32_t address) {
  return kSwizzled | (kKeys * 128 / 16 << 16 | (address & 0x3FFFFU) >> 4);
}

/// d [64 x 128] += a [64 x 16] b [16 x 128], rows of b side by side.
__device__ __forceinline__ void multiply_wide_async(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" MPFA_PLACES_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : MPFA_SUMS_64(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// The same with bf16 operands, and with 256 columns.
__device__ __forceinline__ void multiply_wide_bf16(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MPFA_PLACES_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : MPFA_SUMS_64(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_wide_bf16(float (&d)[128], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MPFA_PLACES_128
               "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
               : MPFA_SUMS_64(d, 0), MPFA_SUMS_64(d, 64)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// d [64 x N] = or += a [64 x 16] b [16 x N] with both in shared memory. add 0: the sums begin with this product.
__device__ __forceinline__ void multiply_shared_bf16(float (&d)[16], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{" MPFA_PLACES_16 "}, %16, %17, p, 1, 1, 0, 0;}"
      : MPFA_SUMS_16(d, 0)
      : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_shared_bf16(float (&d)[32], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" MPFA_PLACES_32 "}, %32, %33, p, 1, 1, 0, 0;}"
      : MPFA_SUMS_32(d, 0)
      : "l"(a), "l"(b), "r"(add));
}

#undef MPFA_PLACES_16
#undef MPFA_PLACES_32
#undef MPFA_PLACES_64
#undef MPFA_PLACES_128
#undef MPFA_SUMS_4
#undef MPFA_SUMS_16
#undef MPFA_SUMS_32
#undef MPFA_SUMS_64

}  // namespace mpfa::ptx
