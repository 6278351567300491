// One thread quantises one scale block of one token, as src/formats does on the host, to the same bytes: same codecs,
// and every sum and product rounded by itself.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/append/fp4/launch.h"
#include "formats/elements.hpp"

namespace mpfa::sm90 {

/// Scale rules on the device. x holds kBlock finite values.
template <int kBlock, bool kMx>
struct BlockQuantiser {
  using E2M1 = formats::E2M1;
  using E4M3 = formats::E4M3;
  using E8M0 = formats::E8M0;

  float global;
  ScaleRule rule;

  __device__ float factor_of(std::uint32_t code) const {
    if constexpr (kMx) return E8M0::decode(code);
    return __fmul_rn(E4M3::decode(code), global);
  }

  __device__ static std::uint32_t encode(float v, float factor, float inverse) {
    // Dividing by a power of two is multiplying by its inverse, also where results are subnormal.
    return E2M1::encode(kMx ? __fmul_rn(v, inverse) : __fdiv_rn(v, factor)).bits;
  }

  __device__ std::uint32_t scale_for(float amax, float target) const {
    return E4M3::encode(__fdiv_rn(__fdiv_rn(amax, target), global)).bits;
  }

  __device__ static float squared_error(const float (&x)[kBlock], float factor, float unit) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const float q = factor > 0.0F ? __fmul_rn(E2M1::decode(encode(x[i], factor, 0.0F)), factor) : 0.0F;
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
      return squared_error(x, factor_of(four), unit) < squared_error(x, factor_of(six), unit) ? four : six;
    }
  }
};

template <AppendInput kInput, int kBlock>
__device__ __forceinline__ void load_block(const AppendOperand& o, std::int64_t at, float (&x)[kBlock]) {
  if constexpr (kInput == AppendInput::f32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(o.x) + at);
#pragma unroll
    for (int i = 0; i < kBlock / 4; ++i) {
      const float4 v = __ldg(from + i);
      x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
  } else {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(o.x) + at);
#pragma unroll
    for (int i = 0; i < kBlock / 8; ++i) {
      const uint4 v = __ldg(from + i);
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t low = words[j] & 0xFFFFU, high = words[j] >> 16;
        using F16 = formats::F16;
        x[8 * i + 2 * j] = kInput == AppendInput::bf16 ? __uint_as_float(low << 16) : F16::decode(low);
        x[8 * i + 2 * j + 1] = kInput == AppendInput::bf16 ? __uint_as_float(high << 16) : F16::decode(high);
      }
    }
  }
}

struct BlockCounts {
  std::uint32_t nonfinite = 0, saturated = 0, flushed = 0;
};

/// Codes of the block to words [kBlock / 8]; returns the scale code.
template <int kBlock, bool kMx>
__device__ __forceinline__ std::uint32_t quantise_block(const BlockQuantiser<kBlock, kMx>& quantiser,
                                                        const float (&x)[kBlock], std::uint32_t (&words)[kBlock / 8],
                                                        BlockCounts& counts) {
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
  const float inverse = kMx ? f::power_of_two(127 - static_cast<int>(code)) : 0.0F;
  if (!(factor > 0.0F) || quantiser.encode(amax, factor, inverse) == 0U) {
    ++counts.flushed;
    return 0U;
  }
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const f::Code c = f::E2M1::encode(kMx ? __fmul_rn(x[i], inverse) : __fdiv_rn(x[i], factor));
    words[i / 8] |= c.bits << (4 * (i % 8));
    counts.saturated += c.saturated ? 1U : 0U;
  }
  return code;
}

template <AppendInput kInput, bool kMx>
__global__ void __launch_bounds__(256) append_fp4(const __grid_constant__ AppendParams p) {
  constexpr int kBlock = kMx ? 32 : 16;
  const AppendOperand& o = p.operand[blockIdx.y];
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const std::uint32_t row_blocks = static_cast<std::uint32_t>(p.heads) * o.blocks;
  if (i >= p.n * row_blocks) return;
  const std::uint32_t token = divide(i, o.row_div), in_row = i - token * row_blocks;
  const std::uint32_t head = divide(in_row, o.blocks_div), block = in_row - head * o.blocks;
  const std::int64_t slot = __ldg(p.slots + token);
  if (slot < 0 || slot >= p.end_slot) return;

  float x[kBlock];
  load_block<kInput, kBlock>(o, token * o.x_row + head * o.x_head + block * kBlock, x);
  if (o.mean != nullptr) {
    const auto* mean = reinterpret_cast<const float4*>(o.mean + (head * o.blocks + block) * kBlock);
#pragma unroll
    for (int j = 0; j < kBlock / 4; ++j) {
      const float4 m = __ldg(mean + j);
      x[4 * j] = __fsub_rn(x[4 * j], m.x), x[4 * j + 1] = __fsub_rn(x[4 * j + 1], m.y);
      x[4 * j + 2] = __fsub_rn(x[4 * j + 2], m.z), x[4 * j + 3] = __fsub_rn(x[4 * j + 3], m.w);
    }
  }
  const BlockQuantiser<kBlock, kMx> quantiser{o.global == nullptr ? 1.0F : o.global[head], o.rule};
  std::uint32_t words[kBlock / 8];
  BlockCounts counts;
  const std::uint32_t code = quantise_block(quantiser, x, words, counts);

  const bool small = p.end_slot <= 0x7FFFFFFF;
  const std::int64_t page = small ? divide(static_cast<std::uint32_t>(slot), p.page_div) : slot / p.page_size;
  const std::int64_t row = slot - page * p.page_size;
  std::uint8_t* data = o.data + page * o.data_page + head * o.data_head + row * o.data_row + block * (kBlock / 2);
  if constexpr (kMx) {
    *reinterpret_cast<uint4*>(data) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    *reinterpret_cast<uint2*>(data) = make_uint2(words[0], words[1]);
  }
  o.scales[page * o.scale_page + head * o.scale_head + row * o.scale_row + block] = static_cast<std::uint8_t>(code);
  if (p.counters == nullptr) return;
  if (counts.nonfinite != 0U) atomicAdd(p.counters, 1ULL);
  if (counts.saturated != 0U) atomicAdd(p.counters + 1, static_cast<unsigned long long>(counts.saturated));
  if (counts.flushed != 0U) atomicAdd(p.counters + 2, 1ULL);
}

}  // namespace mpfa::sm90
