// 16 channels of a row as float32: loads, RoPE of K and the rotation of Q.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/append/launch.h"
#include "formats/elements.hpp"

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

/// Turns channels [channel, channel + 16) of a row of K.
template <AppendInput kInput>
__device__ __forceinline__ void turn_chunk(const AppendRope& r, std::int64_t position, const void* row, int channel,
                                           float (&x)[kChunk]) {
  constexpr DType kDType = kInput == AppendInput::f32    ? DType::f32
                           : kInput == AppendInput::bf16 ? DType::bf16
                                                         : DType::f16;
  const int first = channel - r.begin, turning = 2 * r.half;
  const std::int64_t cos_at = position * r.cos_row, sin_at = position * r.sin_row;
  if (first <= -kChunk || first >= turning) return;
  if (r.k_wide && r.style == RopeStyle::half) {
    const bool second = first >= r.half;
    const int pair = second ? first - r.half : first;
    float cos[kChunk], sin[kChunk], other[kChunk];
    RawRun<kInput> raw;
    raw.load(row, channel + (second ? -r.half : r.half));
    raw.widen(other);
    load_run(r.cos, r.dtype, cos_at + pair, 1, true, cos);
    load_run(r.sin, r.sin_dtype, sin_at + pair, 1, true, sin);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      x[i] = second ? turn_second(other[i], x[i], cos[i], sin[i]) : turn_first(x[i], other[i], cos[i], sin[i]);
    }
    return;
  }
  if (r.k_wide) {
    float cos[kChunk / 2], sin[kChunk / 2];
    load_run(r.cos, r.dtype, cos_at + first / 2, 1, true, cos);
    load_run(r.sin, r.sin_dtype, sin_at + first / 2, 1, true, sin);
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = turn_first(a, b, cos[i], sin[i]), x[2 * i + 1] = turn_second(a, b, cos[i], sin[i]);
    }
    return;
  }
  float copy[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) copy[i] = x[i];
  turn_slowly(r, position, row, kDType, channel, copy);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = copy[i];
}

/// Heads of a token that a thread rotates together: they share cos and sin.
inline constexpr int kQueryHeads = 2;

/// A thread's share of `heads` rows of Q: kCount channels from `channel` on, and their partners. A pair is read and
/// written by one thread, so that q_out may be q.
template <int kCount>
__device__ __forceinline__ void turn_query(const AppendRope& r, std::int64_t position, std::int64_t from,
                                           std::int64_t to, int heads, int channel) {
  const int first = channel - r.begin;
  const auto load = [&](int head, int c, float(&x)[kCount]) {
    load_run(r.q, r.q_dtype, from + head * r.q_head + c * r.q_step, r.q_step, kCount > 1, x);
  };
  const auto keep = [&](int head, int c, const float(&x)[kCount]) {
    store_run(r.q_out, r.q_out_dtype, to + head * r.q_out_head + c * r.q_out_step, r.q_out_step, kCount > 1, x);
  };
  const bool halves = r.style == RopeStyle::half, turns = first >= 0 && first < 2 * r.half;
  if (!halves && kCount == 1 && turns && first % 2 != 0) return;  // written with the one before
  const int partner = !turns ? 0 : halves ? r.half : kCount == 1 ? 1 : 0;
  float x[kQueryHeads][kCount], y[kQueryHeads][kCount], cos[kCount], sin[kCount];
#pragma unroll
  for (int h = 0; h < kQueryHeads; ++h) {
    if (h >= heads) continue;
    load(h, channel, x[h]);
    if (partner > 0) load(h, channel + partner, y[h]);
  }
  if (position < 0 || position >= r.rows) return;
  const std::int64_t pair = turns ? (halves ? first : first / 2) : 0;
  if (turns) {
    const auto table = [&](const void* base, DType dtype, std::int64_t row, std::int64_t step, float(&t)[kCount]) {
      const std::int64_t at = position * row + pair * step;
      if (halves || kCount == 1) return load_run(base, dtype, at, step, kCount > 1, t);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) t[i] = load_element(base, dtype, at + i * step);
    };
    table(r.cos, r.dtype, r.cos_row, r.cos_step, cos);
    table(r.sin, r.sin_dtype, r.sin_row, r.sin_step, sin);
  }
#pragma unroll
  for (int h = 0; h < kQueryHeads; ++h) {
    if (h >= heads) continue;
    if (partner > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = x[h][i], b = y[h][i];
        x[h][i] = turn_first(a, b, cos[i], sin[i]), y[h][i] = turn_second(a, b, cos[i], sin[i]);
      }
      keep(h, channel + partner, y[h]);
    } else if (turns) {
#pragma unroll
      for (int i = 0; i + 1 < kCount; i += 2) {
        const float a = x[h][i], b = x[h][i + 1];
        x[h][i] = turn_first(a, b, cos[i / 2], sin[i / 2]), x[h][i + 1] = turn_second(a, b, cos[i / 2], sin[i / 2]);
      }
    }
    keep(h, channel, x[h]);
  }
}

}  // namespace mpfa::sm90
