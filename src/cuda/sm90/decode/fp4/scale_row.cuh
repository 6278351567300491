// Stored scales of one key, in registers of one lane.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/decode/fp4/operand.h"
#include "cuda/sm90/decode/fp4/params.h"

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
  std::uint32_t w[kWords];

  __device__ __forceinline__ void load(const DecodePages& pages, const std::uint8_t* from) {
    if constexpr (kFixedBytes > 0) load_bytes<kFixedBytes>(from, w);
    if constexpr (kKind == ScaleKind::row) {
      w[0] = __float_as_uint(1.0F);
      if (pages.scales != nullptr) load_bytes<4>(from, w);
    }
    if constexpr (kKind == ScaleKind::group) load_some<kBytes>(pages.scale_bytes, from);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = 0;
  }
  [[nodiscard]] __device__ __forceinline__ float row() const {
    return f32_scale(w[0]);
  }

  /// Scales of the 32-channel chunks, of groups that may be longer.
  template <int kChunks>
  __device__ __forceinline__ void chunks(const DecodePages& pages, float (&f)[kChunks]) const {
    const auto fill = [&]<int kShift>() {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int i = c >> kShift;
        if constexpr (kIntegers) {
          const __half2 pair = *reinterpret_cast<const __half2*>(&w[i / 2]);
          f[c] = i % 2 == 0 ? __low2float(pair) : __high2float(pair);
        } else {
          f[c] = f32_scale(w[i]);
        }
      }
    };
    if constexpr (kIntegers) {
      if (pages.row_scale != 0) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) f[c] = row();
        return;
      }
      if (pages.scale_shift == 2) return fill.template operator()<2>();
    }
    if (pages.scale_shift == 1) return fill.template operator()<1>();
    fill.template operator()<0>();
  }

 private:
  template <int kSome>
  __device__ __forceinline__ void load_some(std::int32_t bytes, const std::uint8_t* from) {
    if (bytes == kSome) {
      load_bytes<kSome>(from, w);
    } else if constexpr (kSome > 2) {
      load_some<kSome / 2>(bytes, from);
    }
  }
};

}  // namespace mpfa::sm90
