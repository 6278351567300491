// Stored scales of one key, in registers of one lane.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/decode/operand.h"
#include "cuda/sm90/decode/params.h"

namespace mpfa::sm90 {

template <int kBytes>
struct Words;
template <>
struct Words<2> {
  using Type = std::uint16_t;
};
template <>
struct Words<4> {
  using Type = std::uint32_t;
};
template <>
struct Words<8> {
  using Type = uint2;
};
template <>
struct Words<16> {
  using Type = uint4;
};

template <int kBytes>
__device__ __forceinline__ void load_bytes(const std::uint8_t* from, std::uint32_t* w) {
  if constexpr (kBytes > 16) {
    load_bytes<16>(from, w);
    load_bytes<kBytes - 16>(from + 16, w + 4);
  } else {
    using Type = typename Words<kBytes>::Type;
    const Type v = __ldg(reinterpret_cast<const Type*>(from));
    if constexpr (kBytes <= 4) {
      w[0] = v;
    } else {
      const auto* words = reinterpret_cast<const std::uint32_t*>(&v);
#pragma unroll
      for (int i = 0; i < kBytes / 4; ++i) w[i] = words[i];
    }
  }
}

/// Loads if `bytes` is kBytes, by a predicate instead of a branch.
template <int kBytes>
__device__ __forceinline__ void load_bytes_if(std::int32_t bytes, const std::uint8_t* from, std::uint32_t* w) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 2) {
    std::uint16_t half = 0;
    asm volatile("{.reg .pred p; setp.eq.s32 p, %2, 2; @p ld.global.nc.u16 %0, [%1];}"
                 : "+h"(half)
                 : "l"(from), "r"(bytes));
    if (bytes == 2) w[0] = half;
  } else if constexpr (kBytes == 4) {
    asm volatile("{.reg .pred p; setp.eq.s32 p, %2, 4; @p ld.global.nc.u32 %0, [%1];}"
                 : "+r"(w[0])
                 : "l"(from), "r"(bytes));
  } else if constexpr (kBytes == 8) {
    asm volatile("{.reg .pred p; setp.eq.s32 p, %3, 8; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(w[0]), "+r"(w[1])
                 : "l"(from), "r"(bytes));
  } else {
    asm volatile("{.reg .pred p; setp.eq.s32 p, %5, 16; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                 : "l"(from), "r"(bytes));
  }
}

/// A stored f32 scale; -1 stands for the zero of a block without a scale.
__device__ __forceinline__ float f32_scale(std::uint32_t bits) {
  const float s = __uint_as_float(bits);
  return s == -1.0F ? 0.0F : s;
}

template <Operand kOperand, int kD>
struct ScaleRow {
  static constexpr ScaleKind kKind = kOperandInfo<kOperand>.scale;
  static constexpr bool kIntegers = kOperand == Operand::int4 || kOperand == Operand::int8;
  /// Most bytes of a key.
  static constexpr int kBytes = kKind == ScaleKind::e8m0    ? kD / 32
                                : kKind == ScaleKind::e4m3  ? kD / 16
                                : kKind == ScaleKind::row   ? 4
                                : kKind == ScaleKind::group ? (kIntegers ? kD / 16 : kD / 8)
                                                            : 0;
  static constexpr int kWords = kBytes > 4 ? kBytes / 4 : 1;
  /// Bytes of a key that are known when compiling; 0: DecodePages::scale_bytes.
  static constexpr int kFixedBytes = kKind == ScaleKind::e8m0 || kKind == ScaleKind::e4m3 ? kBytes : 0;
  std::uint32_t w[kWords] = {};

  __device__ __forceinline__ void load(const DecodePages& pages, const std::uint8_t* from) {
    if constexpr (kFixedBytes > 0) load_bytes<kFixedBytes>(from, w);
    if constexpr (kKind == ScaleKind::row) {
      w[0] = __float_as_uint(1.0F);
      if (pages.scales != nullptr) load_bytes<4>(from, w);
    }
    if constexpr (kKind == ScaleKind::group && kIntegers) load_some<kBytes>(pages.scale_bytes, from);
    if constexpr (kKind == ScaleKind::group && !kIntegers) {
      if (pages.scale_shift == 0) {
        load_bytes<kBytes>(from, w);
      } else {
        load_bytes<kBytes / 2>(from, w);
      }
    }
  }
  /// Of heads with fewer than kD channels: a row of scales may start at any byte.
  __device__ __forceinline__ void load_part(const DecodePages& pages, const std::uint8_t* from, std::int32_t head_dim) {
    if constexpr (kFixedBytes > 0) {
      constexpr std::int32_t kBlock = kD / kFixedBytes;
      load_bytes_at(from, (head_dim + kBlock - 1) / kBlock);
    } else if constexpr (kKind == ScaleKind::group) {
      load_bytes_at(from, pages.scale_bytes);
    } else {
      load(pages, from);
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = 0;
  }
  /// Clears NaN and infinite scales of groups; bit b: that of group b, or all bits for the one of a row.
  __device__ __forceinline__ std::uint32_t clear_broken(const DecodePages& pages) {
    const bool halves = kIntegers && pages.row_scale == 0;
    std::uint32_t groups = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::uint32_t all = isfinite(__uint_as_float(w[i])) ? 0U : ~0U;
      const std::uint32_t broken = halves ? __vcmpgeu2(w[i] & 0x7FFF7FFFU, 0x7C007C00U) : all;
      w[i] &= ~broken;
      groups |= halves ? ((broken & 1U) | (broken >> 15 & 2U)) << (2 * i) : kIntegers ? all : (all & 1U) << i;
    }
    return groups;
  }
  [[nodiscard]] __device__ __forceinline__ float row() const {
    return f32_scale(w[0]);
  }

  /// Scales of the 32-channel chunks, of groups that may be longer.
  template <int kChunks>
  __device__ __forceinline__ void chunks(const DecodePages& pages, float (&f)[kChunks]) const {
    if constexpr (kIntegers) {
      const bool row_scale = pages.row_scale != 0;
#pragma unroll
      for (int c = 0; c < kChunks; c += 2) {
        const std::uint32_t word = pages.scale_shift == 0 ? w[c / 2] : pages.scale_shift == 1 ? w[c / 4] : w[c / 8];
        const std::uint32_t pair = __byte_perm(word, 0, pages.scale_select[c / 2]);
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        f[c] = row_scale ? row() : both.x;
        f[c + 1] = row_scale ? row() : both.y;
      }
    } else if (pages.scale_shift == 0) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) f[c] = f32_scale(w[c]);
    } else {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) f[c] = f32_scale(w[c / 2]);
    }
  }

 private:
  /// `bytes` and zeros, by way of the aligned words that they lie in.
  __device__ __forceinline__ void load_bytes_at(const std::uint8_t* from, std::int32_t bytes) {
    const auto skip = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(from) % 4);
    const auto* words = reinterpret_cast<const std::uint32_t*>(from - skip);
    std::uint32_t raw[kWords + 1];
#pragma unroll
    for (int i = 0; i <= kWords; ++i) raw[i] = 4 * i < skip + bytes ? __ldg(words + i) : 0U;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::int32_t kept = min(max(bytes - 4 * i, 0), 4);
      const std::uint32_t mask = kept == 4 ? 0xFFFFFFFFU : (1U << (8 * kept)) - 1U;
      w[i] = __funnelshift_r(raw[i], raw[i + 1], 8 * skip) & mask;
    }
  }
  /// f16 or f32 scales of integers.
  template <int kSome>
  __device__ __forceinline__ void load_some(std::int32_t bytes, const std::uint8_t* from) {
    load_bytes_if<kSome>(bytes, from, w);
    if constexpr (kSome > 2) load_some<kSome / 2>(bytes, from);
  }
};

}  // namespace mpfa::sm90
