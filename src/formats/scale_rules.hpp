// How the scale of a block follows from its elements.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/decode_run.hpp"

namespace mpfa::formats {

/// Scales are chosen for magnitudes up to here, so that no finite input dequantises to Inf; larger ones saturate.
inline constexpr float kLargestMagnitude = 0x1p127F;
/// Smallest fp32 scale: its reciprocal is finite.
inline constexpr float kSmallestScale = 0x1p-126F;
inline constexpr float kLargestHalf = 65504.0F;

/// Elements that share a scale: lines that are contiguous in a data row, with the strides they have in the input.
struct Block {
  const float* x;
  std::int64_t lines, length, line_stride, step;
};

template <class Fn>
void for_each(const Block& b, Fn&& fn) {
  for (std::int64_t l = 0; l < b.lines; ++l) {
    const float* line = b.x + l * b.line_stride;
    for (std::int64_t i = 0; i < b.length; ++i) fn(line[i * b.step]);
  }
}

/// Bits of the largest magnitude: compares like the magnitudes, with Inf and NaN on top.
inline std::uint32_t largest_bits(const Block& b) {
  std::uint32_t largest = 0;
  for_each(b, [&](float v) { largest = std::max(largest, float_bits(v) & kFloatAbs); });
  return largest;
}

inline bool is_constant(const Block& b) {
  bool same = true;
  for_each(b, [&](float v) { same = same && v == b.x[0]; });
  return same;
}

/// The stored bytes of a scale, the factor they mean, and whether all codes of the block are 0.
struct Chosen {
  std::array<std::byte, 4> bytes{};
  BlockFactor factor;
  bool zero_codes = false;
};

template <class Scale>
Chosen stored(std::uint32_t code, const FactorContext& context) {
  Chosen c;
  std::memcpy(c.bytes.data(), &code, c.bytes.size());
  c.factor = Scale::read(c.bytes.data(), context);
  return c;
}

inline std::uint32_t half_code(float v) {
  return F16::encode(std::clamp(v, -kLargestHalf, kLargestHalf)).bits;
}

/// Code of a NaN scale; both halves for scale and minimum.
inline std::uint32_t nan_scale(ScaleType s) {
  switch (s) {
    case ScaleType::e8m0: return 0xFFU;
    case ScaleType::e4m3: return 0x7FU;
    case ScaleType::f16: return 0x7E00U;
    case ScaleType::f16_zero: return 0x7E007E00U;
    default: return kFloatNan;
  }
}

inline std::uint32_t zero_scale(const BlockFormat& f) {
  const bool sentinel = f.scale == ScaleType::f32 && (f.element == Element::e2m1 || f.element == Element::e3m0);
  return sentinel ? float_bits(kZeroSentinel) : 0U;
}

/// Squared error of e2m1 codes under `factor`, summed in order; `unit` is a power of two that keeps it in range.
inline float squared_error(const Block& b, float factor, float unit) {
  float sum = 0.0F;
  for_each(b, [&](float v) {
    const float q = factor > 0.0F ? kByteTable<E2M1>[E2M1::encode(v / factor).bits] * factor : 0.0F;
    const float error = (v - q) * unit;
    sum += error * error;
  });
  return sum;
}

/// Code of nvfp4's e4m3 scale that puts `amax` at `target`, limited to 448.
inline std::uint32_t e4m3_scale(float amax, float target, const FactorContext& context) {
  return E4M3::encode(amax / target / context.global).bits;
}

inline std::uint32_t four_over_six_scale(const Block& b, float amax, const FactorContext& context) {
  const float unit = power_of_two(-std::clamp(floor_log2(amax), -126, 126));
  const std::uint32_t six = e4m3_scale(amax, 6.0F, context), four = e4m3_scale(amax, 4.0F, context);
  const auto error = [&](std::uint32_t code) { return squared_error(b, E4M3::decode(code) * context.global, unit); };
  return error(four) < error(six) ? four : six;
}

inline float float_scale(float amax, float element_limit) {
  return std::max(amax / element_limit, kSmallestScale);
}

/// L2 norm as float16. Past its range every element of the token is out of proportion, so all count as saturated.
inline std::uint32_t norm_scale(const Block& b, QuantiseCounters& counters) {
  double sum = 0.0;
  for_each(b, [&](float v) { sum += static_cast<double>(v) * static_cast<double>(v); });
  const double norm = std::sqrt(sum);
  if (norm >= 65520.0) counters.saturated_elements += b.lines * b.length;
  return half_code(static_cast<float>(std::min(norm, 65504.0)));
}

/// Code of a float16 scale and, above it, of the float16 minimum.
inline std::uint32_t min_max_scale(const Block& b, float steps) {
  float low = b.x[0], high = b.x[0];
  for_each(b, [&](float v) { low = std::min(low, v), high = std::max(high, v); });
  // + 0 turns a minimum of -0 into 0, so that the bytes do not depend on which zero came first.
  return half_code((high - low) / steps) | half_code(low + 0.0F) << 16;
}

/// Scale code of a finite block that is not all zero.
inline std::uint32_t scale_code(const BlockFormat& f, const Block& b, float amax, const FactorContext& context,
                                QuantiseCounters& counters) {
  const float limit = element_max(f.element);
  switch (f.rule) {
    case ScaleRule::least_error: return E8M0::encode_exponent(ceil_log2_ratio(amax, 7.25F));
    case ScaleRule::floor: return E8M0::encode_exponent(floor_log2(amax) - floor_log2(limit));
    case ScaleRule::ceil: return E8M0::encode_exponent(ceil_log2_ratio(amax, limit));
    case ScaleRule::four_over_six: return four_over_six_scale(b, amax, context);
    case ScaleRule::norm: return norm_scale(b, counters);
    case ScaleRule::min_max: return min_max_scale(b, limit);
    default: break;
  }
  if (f.scale == ScaleType::e4m3) return e4m3_scale(amax, limit, context);
  return f.scale == ScaleType::f16 ? half_code(amax / limit) : float_bits(float_scale(amax, limit));
}

/// `largest`: largest_bits of the block.
template <class Codec, class Scale>
Chosen choose_scale(const BlockFormat& f, const Block& b, std::uint32_t largest, const FactorContext& context,
                    QuantiseCounters& counters) {
  if constexpr (Scale::kBytes == 0) {
    counters.nonfinite_blocks += largest >= kFloatInf ? 1 : 0;
    return stored<Scale>(0, context);
  } else {
    if (largest >= kFloatInf) {
      ++counters.nonfinite_blocks;
      Chosen c = stored<Scale>(nan_scale(f.scale), context);
      c.zero_codes = true;
      return c;
    }
    if (largest != 0U) {
      const float amax = std::min(bits_float(largest), kLargestMagnitude);
      Chosen c = stored<Scale>(scale_code(f, b, amax, context, counters), context);
      if (f.rule == ScaleRule::min_max) {
        c.zero_codes = c.factor.factor == 0.0F;
        counters.flushed_blocks += c.zero_codes && !is_constant(b) ? 1 : 0;
        return c;
      }
      if (c.factor.factor > 0.0F && Codec::encode(amax / c.factor.factor).bits != 0U) return c;
      ++counters.flushed_blocks;
    }
    Chosen c = stored<Scale>(zero_scale(f), context);
    c.zero_codes = true;
    return c;
  }
}

}  // namespace mpfa::formats
