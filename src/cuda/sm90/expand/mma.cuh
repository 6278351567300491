// Asynchronous MMAs on tiles of f16 in shared memory, [half of 64 channels][64 keys][128 bytes] with the hardware's
// swizzle of 128 bytes: 16-byte place j of key r is at j ^ r % 8.
#pragma once

#include <cstdint>

#include "cuda/sm90/expand/config.h"
#include "cuda/sm90/verify/wgmma.cuh"

namespace mpfa::ptx {

/// Of a tile's matrix descriptors, the upper half: 1024 bytes to the next 8 keys, swizzle of 128 bytes.
inline constexpr std::uint64_t kSwizzled = std::uint64_t{1024 / 16 | 1U << 30} << 32;

/// K: B operand of 64 columns (keys), 16 channels an MMA.
__device__ __forceinline__ std::uint64_t keys_descriptor(std::uint32_t address) {
  return kSwizzled | (1U << 16 | (address & 0x3FFFFU) >> 4);
}
/// V: B operand of 128 columns (channels), 16 keys an MMA. The step between halves is said here.
__device__ __forceinline__ std::uint64_t values_descriptor(std::uint32_t address) {
  return kSwizzled | (mpfa::sm90::kExpandKeys * 128 / 16 << 16 | (address & 0x3FFFFU) >> 4);
}

/// d [64 x 128] += a [64 x 16] b [16 x 128], rows of b side by side.
__device__ __forceinline__ void multiply_wide_async(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace mpfa::ptx
