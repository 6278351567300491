#include "cpu/round_p.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/tile_ops.hpp"
#include "formats/elements.hpp"

// The rules are stated once in attention/probabilities.cpp; these are their branch-free forms for p in [0, 1].
namespace mpfa::cpu {
namespace {

/// Nearest integer, ties to even, for |v| < 2^22.
inline float nearest(float v) {
  constexpr float kMagic = 0x1.8p23F;
  return (v + kMagic) - kMagic;
}

/// RN_e2m1(v) for v >= 0, saturating at 6: steps of 1/2 below 2, 1 below 4, 2 above.
inline float nearest_e2m1(float v) {
  const float small = nearest(v * 2.0F) * 0.5F;
  const float middle = nearest(v);
  const float large = nearest(std::min(v, 6.0F) * 0.5F) * 2.0F;
  return v < 2.0F ? small : (v < 4.0F ? middle : large);
}

/// e4m3 codes are linear in log2: code = 8 log2(p * scale) + 56, no exp2.
void round_loglin(float scale, const float* log2_p, float* p) {
  const float offset = 8.0F * std::log2(scale) + 56.0F;
  const float inverse = 1.0F / scale;
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    const float code = nearest(std::clamp(8.0F * log2_p[i] + offset, 0.0F, 126.0F));
    const auto bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(code));
    const float normal = std::bit_cast<float>((bits + 120U * 8U) << 20);
    p[i] = (code < 8.0F ? code * 0x1p-9F : normal) * inverse;
  }
}

void round_direct(bool accurate, const float* log2_p, float* p) {
  constexpr float kLog2Six = 2.5849625F;
  for (std::int64_t b = 0; b < kKeyTile; b += 32) {
    const float top = row_max(log2_p + b, 32);
    if (top == -std::numeric_limits<float>::infinity()) {
      std::fill_n(p + b, 32, 0.0F);
      continue;
    }
    const float exponent = std::ceil(top);
    const float unit = std::exp2(exponent) / 6.0F;
    float y[32], power[32];
    for (std::int64_t i = 0; i < 32; ++i) {
      y[i] = log2_p[b + i] - exponent + kLog2Six;
      p[b + i] = nearest_e2m1(std::max(0.0F, 1.5F * y[i] + 1.2F)) * unit;
    }
    if (!accurate) continue;
    row_exp2(y, 0.0F, 32, power);
    for (std::int64_t i = 0; i < 32; i += 4) p[b + i] = nearest_e2m1(power[i]) * unit;
  }
}

/// Blocks of 16 keys under an e4m3 scale that sends the block maximum to `target` (6, or 2 when it is small).
void round_nvfp4(bool underflow_rule, float* p) {
  for (std::int64_t b = 0; b < kKeyTile; b += 16) {
    float amax = 0.0F;
    for (std::int64_t i = 0; i < 16; ++i) amax = std::max(amax, p[b + i]);
    const float target = underflow_rule && amax <= 21.0F / 1024.0F ? 2.0F : 6.0F;
    const float scale = formats::E4M3::decode(formats::E4M3::encode(amax / target).bits);
    if (scale == 0.0F) {
      std::fill_n(p + b, 16, 0.0F);
      continue;
    }
    for (std::int64_t i = 0; i < 16; ++i) p[b + i] = nearest_e2m1(p[b + i] / scale) * scale;
  }
}

void round_two_level(float* p) {
  const float row_scale = row_max(p, kKeyTile) / (448.0F * 6.0F);
  if (row_scale == 0.0F) return;
  for (std::int64_t i = 0; i < kKeyTile; ++i) p[i] /= row_scale;
  round_nvfp4(false, p);
  for (std::int64_t i = 0; i < kKeyTile; ++i) p[i] *= row_scale;
}

void round_mxfp4(float* p) {
  for (std::int64_t b = 0; b < kKeyTile; b += 32) {
    float amax = 0.0F;
    for (std::int64_t i = 0; i < 32; ++i) amax = std::max(amax, p[b + i]);
    if (amax == 0.0F) continue;
    const float scale = formats::power_of_two(std::max(formats::ceil_log2_ratio(amax, 7.25F), -126));
    for (std::int64_t i = 0; i < 32; ++i) p[b + i] = nearest_e2m1(p[b + i] / scale) * scale;
  }
}

float sum(const float* p) {
  float partial[16] = {};
  for (std::int64_t i = 0; i < kKeyTile; i += 16) {
    for (std::int64_t j = 0; j < 16; ++j) partial[j] += p[i + j];
  }
  float total = 0.0F;
  for (const float x : partial) total += x;
  return total;
}

}  // namespace

float round_row(PMode mode, float p_scale, float top, bool same_codes, float* x) {
  if (mode == PMode::f32 || mode == PMode::bf16 || mode == PMode::e4m3) {
    const float exact = row_exp2(x, top, kKeyTile, x);
    if (mode == PMode::bf16) row_round_bf16(x, kKeyTile);
    if (mode == PMode::e4m3) row_round_e4m3(x, p_scale, kKeyTile);
    return same_codes ? sum(x) : exact;
  }
  const bool from_logits =
      mode == PMode::e4m3_loglin || mode == PMode::mxfp4_direct_fast || mode == PMode::mxfp4_direct_accurate;
  float log2_p[kKeyTile];
  bool nan = false;
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    log2_p[i] = x[i] - top;
    nan |= log2_p[i] != log2_p[i];
  }
  if (nan) {
    // 4-bit codes have no NaN: without this a broken row would look healthy.
    std::fill_n(x, kKeyTile, std::numeric_limits<float>::quiet_NaN());
    return std::numeric_limits<float>::quiet_NaN();
  }
  // The codes of these modes need no exp2; only an exact denominator does.
  const float exact = from_logits && same_codes ? 0.0F : row_exp2(log2_p, 0.0F, kKeyTile, x);
  switch (mode) {
    case PMode::e4m3_loglin: round_loglin(p_scale, log2_p, x); break;
    case PMode::mxfp4: round_mxfp4(x); break;
    case PMode::nvfp4: round_nvfp4(false, x); break;
    case PMode::nvfp4_underflow: round_nvfp4(true, x); break;
    case PMode::nvfp4_two_level: round_two_level(x); break;
    case PMode::mxfp4_direct_fast: round_direct(false, log2_p, x); break;
    case PMode::mxfp4_direct_accurate: round_direct(true, log2_p, x); break;
    default: break;
  }
  return same_codes ? sum(x) : exact;
}

}  // namespace mpfa::cpu
