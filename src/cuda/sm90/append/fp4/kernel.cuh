// A thread quantises one scale block of one head, for one token after another, so that means and places are found once.
// As src/formats does on the host, to the same bytes: same codecs, every sum and product rounded by itself, sums in the
// same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/append/fp4/launch.h"
#include "formats/elements.hpp"

namespace mpfa::sm90 {

/// |q| to nearest, ties to even, on the e2m1 grid continued past 6: `code` counts grid points (7 is 6, 8 and more
/// saturate), `shifted` - `magic` is the value of the grid point. Adding a power of two whose last bit is the grid's
/// step at |q| does the rounding. |q| < 2^100.
struct GridPoint {
  std::uint32_t magic, shifted, code;
};
__device__ __forceinline__ GridPoint round_to_grid(float q) {
  constexpr std::uint32_t kLift = 22U << 23, kLeast = (127U + 22U) << 23;  // a step of 0.5 below 2
  GridPoint g;
  g.magic = __viaddmax_u32(formats::float_bits(q) & 0x7F800000U, kLift, kLeast);
  g.shifted = formats::float_bits(__fadd_rn(fabsf(q), formats::bits_float(g.magic)));
  g.code = g.shifted - g.magic + (g.magic >> 22) - 2U * (127U + 22U);
  return g;
}

/// v / factor, correctly rounded where it matters: results below 0.25 round to code 0 whatever their last bit.
template <bool kMx>
struct Quotient {
  float factor, inverse;
  bool slow;

  __device__ Quotient(float f, std::uint32_t code) : factor(f) {
    if constexpr (kMx) {
      inverse = formats::power_of_two(127 - static_cast<int>(code));
      slow = false;
    } else {
      // Markstein's division needs the rounded inverse, no intermediate overflow, and a factor that is not all ones.
      inverse = __frcp_rn(f);
      slow = !(f > 0x1p-100F && f < 0x1p100F) || (formats::float_bits(f) & 0x7FFFFFU) == 0x7FFFFFU;
    }
  }
  __device__ float operator()(float v) const {
    // Dividing by a power of two is multiplying by its inverse, also where results are subnormal.
    if constexpr (kMx) return __fmul_rn(v, inverse);
    float q = __fmul_rn(v, inverse);
    q = slow ? __fdiv_rn(v, factor) : __fmaf_rn(__fmaf_rn(-q, factor, v), inverse, q);
    return fminf(fmaxf(q, -16.0F), 16.0F);  // far past saturation already
  }
};

/// Scale rules on the device. x holds finite values.
template <bool kMx>
struct BlockQuantiser {
  using E4M3 = formats::E4M3;
  using E8M0 = formats::E8M0;
  static constexpr int kBlock = kMx ? 32 : 16;

  float global;
  ScaleRule rule;

  __device__ float factor_of(std::uint32_t code) const {
    if constexpr (kMx) return E8M0::decode(code);
    return __fmul_rn(E4M3::decode(code), global);
  }

  __device__ std::uint32_t scale_for(float amax, float target) const {
    return E4M3::encode(__fdiv_rn(__fdiv_rn(amax, target), global)).bits;
  }

  __device__ float squared_error(const float (&x)[kBlock], std::uint32_t code, float unit) const {
    const float factor = factor_of(code);
    const Quotient<kMx> quotient(factor, code);
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const GridPoint g = round_to_grid(quotient(x[i]));
      const float value = fminf(__fsub_rn(formats::bits_float(g.shifted), formats::bits_float(g.magic)), 6.0F);
      const float q = factor > 0.0F ? __fmul_rn(copysignf(value, x[i]), factor) : 0.0F;
      const float error = __fmul_rn(__fsub_rn(x[i], q), unit);
      sum = __fadd_rn(sum, __fmul_rn(error, error));
    }
    return sum;
  }

  __device__ std::uint32_t scale_code(const float (&x)[kBlock], float amax) const {
    if constexpr (kMx) {
      if (rule == ScaleRule::floor) return E8M0::encode_exponent(formats::floor_log2(amax) - 2);
      return E8M0::encode_exponent(formats::ceil_log2_ratio(amax, rule == ScaleRule::ceil ? 6.0F : 7.25F));
    } else {
      const std::uint32_t six = scale_for(amax, 6.0F);
      if (rule != ScaleRule::four_over_six) return six;
      const std::uint32_t four = scale_for(amax, 4.0F);
      const float unit = formats::power_of_two(-min(max(formats::floor_log2(amax), -126), 126));
      return squared_error(x, four, unit) < squared_error(x, six, unit) ? four : six;
    }
  }
};

template <int kCount>
__device__ __forceinline__ void load_floats(const float* from, float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(from) + i);
    x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
  }
}

template <AppendInput kInput, int kCount>
__device__ __forceinline__ void load_block(const void* base, std::int64_t at, float (&x)[kCount]) {
  if constexpr (kInput == AppendInput::f32) {
    load_floats(static_cast<const float*>(base) + at, x);
  } else {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(base) + at);
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const uint4 v = __ldg(from + i);
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        using F16 = formats::F16;
        const bool bf16 = kInput == AppendInput::bf16;
        x[8 * i + 2 * j] = bf16 ? __uint_as_float(words[j] << 16) : F16::decode(words[j] & 0xFFFFU);
        x[8 * i + 2 * j + 1] = bf16 ? __uint_as_float(words[j] & 0xFFFF0000U) : F16::decode(words[j] >> 16);
      }
    }
  }
}

struct BlockCounts {
  std::uint32_t nonfinite = 0, saturated = 0, flushed = 0;
};

/// Codes of the block to `words`; returns the scale code.
template <bool kMx, int kBlock>
__device__ __forceinline__ std::uint32_t quantise_block(const BlockQuantiser<kMx>& quantiser, const float (&x)[kBlock],
                                                        std::uint32_t (&words)[kBlock / 8], BlockCounts& counts) {
  namespace f = formats;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) largest = max(largest, f::float_bits(x[i]) & f::kFloatAbs);
#pragma unroll
  for (int i = 0; i < kBlock / 8; ++i) words[i] = 0;
  if (largest >= f::kFloatInf) {
    ++counts.nonfinite;
    return kMx ? 0xFFU : 0x7FU;  // a NaN scale
  }
  if (largest == 0U) return 0U;
  const float amax = fminf(f::bits_float(largest), 0x1p127F);
  const std::uint32_t code = quantiser.scale_code(x, amax);
  const float factor = quantiser.factor_of(code);
  const Quotient<kMx> quotient(factor, code);
  if (!(factor > 0.0F) || round_to_grid(quotient(amax)).code == 0U) {
    ++counts.flushed;
    return 0U;
  }
  std::uint32_t past = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t raw = round_to_grid(quotient(x[i])).code;
    past |= raw;
    const std::uint32_t held = min(raw, 7U) | ((f::float_bits(x[i]) >> 28) & 8U);
    words[i / 8] += held << (4 * (i % 8));
  }
  if ((past & ~7U) != 0U) {
#pragma unroll
    for (int i = 0; i < kBlock; ++i) counts.saturated += round_to_grid(quotient(x[i])).code > 7U ? 1U : 0U;
  }
  return code;
}

template <AppendInput kInput, bool kMx>
__global__ void __launch_bounds__(256) append_fp4(const __grid_constant__ AppendParams p) {
  constexpr int kBlock = BlockQuantiser<kMx>::kBlock;
  const AppendOperand& o = p.operand[blockIdx.y];
  const std::uint32_t row_blocks = static_cast<std::uint32_t>(p.heads) * o.blocks;
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x / row_blocks;
  std::uint32_t token = i / row_blocks;
  const std::uint32_t in_row = i - token * row_blocks, head = in_row / o.blocks, block = in_row - head * o.blocks;
  if (token >= step) return;  // threads beyond a whole number of tokens

  float mean[kBlock] = {};
  if (o.mean != nullptr) load_floats(o.mean + in_row * kBlock, mean);
  const BlockQuantiser<kMx> quantiser{o.global == nullptr ? 1.0F : o.global[head], o.rule};
  std::uint8_t* const data = o.data + head * o.data_head + block * (kBlock / 2);
  std::uint8_t* const scales = o.scales + head * o.scale_head + block;
  const std::int64_t first = head * o.x_head + block * kBlock;
  const bool small = p.end_slot <= 0x7FFFFFFF;
  BlockCounts counts;
  for (; token < static_cast<std::uint32_t>(p.n); token += step) {
    const std::int64_t slot = __ldg(p.slots + token);
    float x[kBlock];
    load_block<kInput>(o.x, token * o.x_row + first, x);
    if (slot < 0 || slot >= p.end_slot) continue;
#pragma unroll
    for (int j = 0; j < kBlock; ++j) x[j] = __fsub_rn(x[j], mean[j]);
    std::uint32_t words[kBlock / 8];
    const std::uint32_t code = quantise_block(quantiser, x, words, counts);
    const std::int64_t page = small ? divide(static_cast<std::uint32_t>(slot), p.page_div) : slot / p.page_size;
    const std::int64_t row = slot - page * p.page_size;
    std::uint8_t* const to = data + page * o.data_page + row * o.data_row;
    if constexpr (kMx) {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    }
    scales[page * o.scale_page + row * o.scale_row] = static_cast<std::uint8_t>(code);
  }
  if (p.counters == nullptr) return;
  if (counts.nonfinite != 0U) atomicAdd(p.counters, static_cast<unsigned long long>(counts.nonfinite));
  if (counts.saturated != 0U) atomicAdd(p.counters + 1, static_cast<unsigned long long>(counts.saturated));
  if (counts.flushed != 0U) atomicAdd(p.counters + 2, static_cast<unsigned long long>(counts.flushed));
}

}  // namespace mpfa::sm90
