// 16 channels of a row as float32: loads, RoPE of K and the rotation of Q.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/append/codes.cuh"
#include "cuda/sm90/append/launch.h"

namespace mpfa::sm90 {

/// kCount elements as they lie in memory.
template <AppendInput kInput, int kCount = kChunk>
struct RawRun {
  static constexpr int kSize = kInput == AppendInput::f32 ? 4 : 2, kVectors = kCount * kSize / 16;
  uint4 v[kVectors];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint4& x : v) x = make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void load(const void* base, std::int64_t element) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(base) + element * kSize);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = from[i];
  }
  __device__ __forceinline__ void widen(float (&x)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kInput == AppendInput::f32) {
          x[4 * i + j] = __uint_as_float(words[j]);
        } else if constexpr (kInput == AppendInput::bf16) {
          x[8 * i + 2 * j] = __uint_as_float(words[j] << 16);
          x[8 * i + 2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000U);
        } else {
          const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
          x[8 * i + 2 * j] = pair.x, x[8 * i + 2 * j + 1] = pair.y;
        }
      }
    }
  }
};

__device__ __forceinline__ float load_element(const void* base, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(base)[i];
  const std::uint32_t bits = static_cast<const std::uint16_t*>(base)[i];
  return dtype == DType::bf16 ? formats::Bf16::decode(bits) : formats::F16::decode(bits);
}
__device__ __forceinline__ void store_element(void* base, DType dtype, std::int64_t i, float x) {
  if (dtype == DType::f32) {
    static_cast<float*>(base)[i] = x;
  } else {
    const formats::Code code = dtype == DType::bf16 ? formats::Bf16::encode(x) : formats::F16::encode(x);
    static_cast<std::uint16_t*>(base)[i] = static_cast<std::uint16_t>(code.bits);
  }
}
/// kCount elements from `i` on; `vectors`: 16-byte loads are possible.
template <int kCount>
__device__ __forceinline__ void load_run(const void* base, DType dtype, std::int64_t i, std::int64_t step, bool vectors,
                                         float (&x)[kCount]) {
  if constexpr (kCount % 8 == 0) {
    const auto load = [&]<AppendInput kInput>() {
      RawRun<kInput, kCount> raw;
      raw.load(base, i), raw.widen(x);
    };
    if (vectors && dtype == DType::f32) return load.template operator()<AppendInput::f32>();
    if (vectors && dtype == DType::bf16) return load.template operator()<AppendInput::bf16>();
    if (vectors) return load.template operator()<AppendInput::f16>();
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) x[j] = load_element(base, dtype, i + j * step);
}

/// The opposite of load_run.
template <int kCount>
__device__ __forceinline__ void store_run(void* base, DType dtype, std::int64_t i, std::int64_t step, bool vectors,
                                          const float (&x)[kCount]) {
  if constexpr (kCount % 8 == 0) {
    if (vectors && dtype == DType::f32) {
      auto* to = reinterpret_cast<float4*>(static_cast<float*>(base) + i);
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) to[j] = make_float4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
      return;
    }
    if (vectors) {
      std::uint32_t words[kCount / 2];
      const auto pack = [&]<class Codec>() {
#pragma unroll
        for (int j = 0; j < kCount / 2; ++j) {
          words[j] = Codec::encode(x[2 * j]).bits | Codec::encode(x[2 * j + 1]).bits << 16;
        }
      };
      dtype == DType::bf16 ? pack.template operator()<formats::Bf16>() : pack.template operator()<formats::F16>();
      auto* to = reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(base) + i);
#pragma unroll
      for (int j = 0; j < kCount / 8; ++j) {
        to[j] = make_uint4(words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]);
      }
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) store_element(base, dtype, i + j * step, x[j]);
}

/// The host's rows::turn_pair: every product and sum rounded by itself.
__device__ __forceinline__ float turn_first(float x, float y, float cos, float sin) {
  return __fsub_rn(__fmul_rn(x, cos), __fmul_rn(y, sin));
}
__device__ __forceinline__ float turn_second(float x, float y, float cos, float sin) {
  return __fadd_rn(__fmul_rn(x, sin), __fmul_rn(y, cos));
}

/// turn_chunk for any table, and pairs that cross chunks.
inline __device__ __noinline__ void turn_slowly(const AppendRope& r, std::int64_t position, const void* row,
                                                DType dtype, int channel, float (&x)[kChunk]) {
  const int first = channel - r.begin, turning = 2 * r.half;
  const std::int64_t cos_at = position * r.cos_row, sin_at = position * r.sin_row;
#pragma unroll 1
  for (int i = 0; i < kChunk; ++i) {
    const int c = first + i;
    if (c < 0 || c >= turning) continue;
    const bool second = r.style == RopeStyle::half ? c >= r.half : c % 2 != 0;
    const int pair = r.style == RopeStyle::interleaved ? c / 2 : second ? c - r.half : c;
    const int away = r.style == RopeStyle::half ? r.half : 1;
    const float other = load_element(row, dtype, channel + i + (second ? -away : away));
    const float cos = load_element(r.cos, r.dtype, cos_at + pair * r.cos_step);
    const float sin = load_element(r.sin, r.sin_dtype, sin_at + pair * r.sin_step);
    x[i] = second ? turn_second(other, x[i], cos, sin) : turn_first(x[i], other, cos, sin);
  }
}

/// Turns channels whose partners, `half` channels away, are known; pairs from `pair` on. Sums and differences of the
/// same products: first and second differ by the sign of the sine.
template <AppendInput kInput>
__device__ __forceinline__ void turn_with(const AppendRope& r, std::int64_t position, const RawRun<kInput>& partners,
                                          bool second, int pair, float (&x)[kChunk]) {
  float other[kChunk];
  partners.widen(other);
  const std::uint32_t flip = second ? 0U : 0x80000000U;
#pragma unroll
  for (int at = 0; at < kChunk; at += 8) {
    float cos[8], sin[8];
    load_run(r.cos, r.dtype, position * r.cos_row + pair + at, 1, true, cos);
    load_run(r.sin, r.sin_dtype, position * r.sin_row + pair + at, 1, true, sin);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float turned = formats::bits_float(formats::float_bits(sin[i]) ^ flip);
      x[at + i] = __fadd_rn(__fmul_rn(x[at + i], cos[i]), __fmul_rn(other[at + i], turned));
    }
  }
}

/// Turns channels [channel, channel + 16) of a row of K, where partners are not at hand.
template <AppendInput kInput>
__device__ __forceinline__ void turn_chunk(const AppendRope& r, std::int64_t position, const void* row, int channel,
                                           float (&x)[kChunk]) {
  constexpr DType kDType = kInput == AppendInput::f32    ? DType::f32
                           : kInput == AppendInput::bf16 ? DType::bf16
                                                         : DType::f16;
  const int first = channel - r.begin, turning = 2 * r.half;
  if (first <= -kChunk || first >= turning) return;
  if (r.k_wide && r.style == RopeStyle::interleaved) {
    float cos[kChunk / 2], sin[kChunk / 2];
    load_run(r.cos, r.dtype, position * r.cos_row + first / 2, 1, true, cos);
    load_run(r.sin, r.sin_dtype, position * r.sin_row + first / 2, 1, true, sin);
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = turn_first(a, b, cos[i], sin[i]), x[2 * i + 1] = turn_second(a, b, cos[i], sin[i]);
    }
    return;
  }
  InMemory<float, kChunk> copy = in_memory(x);
  turn_slowly(r, position, row, kDType, channel, copy.v);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = copy.v[i];
}

}  // namespace mpfa::sm90
