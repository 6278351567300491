#include "attention/probabilities.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cache/convert.hpp"
#include "formats/elements.hpp"
#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

using Tile = std::array<float, kKeyTile>;

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kE2m1Max = 6.0F;
constexpr float kE4m3Max = 448.0F;
constexpr std::int64_t kMxBlock = 32;
constexpr std::int64_t kNvBlock = 16;
constexpr BlockFormat kMxfp4{Element::e2m1, ScaleType::e8m0, ScaleRule::least_error, PackAxis::head_dim, 32, 1};
constexpr BlockFormat kNvfp4{Element::e2m1, ScaleType::e4m3, ScaleRule::amax, PackAxis::head_dim, 16, 1};

// Direct-P: the e2m1 code of 2^y is read off the line A y + B.
constexpr float kDirectA = 1.5F;
constexpr float kDirectB = 1.2F;
constexpr std::int64_t kDirectExactEvery = 4;  // accurate: one key in four goes through exp2

/// Below this the e4m3 scale amax/6 is within reach of its subnormals; amax/2 keeps three times more of them.
constexpr float kUnderflowAmax = 21.0F / 1024.0F;

float round_e2m1(float x) {
  return formats::E2M1::decode(formats::E2M1::encode(x).bits);
}
float round_e4m3(float x) {
  return formats::E4M3::decode(formats::E4M3::encode(x).bits);
}

void round_e4m3_tile(float scale, Tile& p) {
  for (float& x : p) x = round_e4m3(x * scale) / scale;
}

/// e4m3 codes are piecewise linear in log2: 8 codes per octave and 56 = code of 1, so the code needs no exp2.
void round_loglin_tile(float scale, const Tile& log2_p, Tile& p) {
  const float lift = std::log2(scale);
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (log2_p[i] == kMasked) continue;
    const float code = std::clamp(std::nearbyint(8.0F * (log2_p[i] + lift) + 56.0F), 0.0F, 126.0F);
    p[i] = formats::E4M3::decode(static_cast<std::uint32_t>(code)) / scale;
  }
}

void round_format_tile(const BlockFormat& f, Tile& p) {
  const Tile exact = p;
  round_trip_tokens(f, kKeyTile, 1, exact.data(), kKeyTile, p.data(), kKeyTile, nullptr);
}

/// e2m1 codes under the e4m3 scale of `target` = the value the block maximum is sent to.
void round_nvfp4_block(float target, float* p) {
  const float amax = *std::max_element(p, p + kNvBlock);
  const float scale = round_e4m3(amax / target);
  for (std::int64_t i = 0; i < kNvBlock; ++i) p[i] = scale > 0.0F ? round_e2m1(p[i] / scale) * scale : 0.0F;
}

void round_underflow_tile(Tile& p) {
  for (float* block = p.data(); block < p.data() + kKeyTile; block += kNvBlock) {
    const bool low = *std::max_element(block, block + kNvBlock) <= kUnderflowAmax;
    round_nvfp4_block(low ? 2.0F : kE2m1Max, block);
  }
}

/// The row scale lifts the tile to the whole range of the block scales: max -> 448 * 6.
void round_two_level_tile(Tile& p) {
  const float row_scale = *std::max_element(p.begin(), p.end()) / (kE4m3Max * kE2m1Max);
  if (row_scale == 0.0F) return;
  for (float& x : p) x /= row_scale;
  round_format_tile(kNvfp4, p);
  for (float& x : p) x *= row_scale;
}

void round_direct_block(bool accurate, const float* log2_p, float* p) {
  const float top = *std::max_element(log2_p, log2_p + kMxBlock);
  if (top == kMasked) return;
  const float exponent = std::ceil(top);
  const float unit = std::exp2(exponent) / kE2m1Max;
  for (std::int64_t i = 0; i < kMxBlock; ++i) {
    if (log2_p[i] == kMasked) continue;
    const float y = log2_p[i] - exponent + std::log2(kE2m1Max);
    const bool exact = accurate && i % kDirectExactEvery == 0;
    p[i] = round_e2m1(exact ? std::exp2(y) : std::max(0.0F, kDirectA * y + kDirectB)) * unit;
  }
}

}  // namespace

void round_probabilities(PMode mode, float p_scale, const float* log2_p, float* p_out, std::int64_t n) {
  Tile x;
  x.fill(kMasked);
  std::copy_n(log2_p, n, x.begin());
  Tile p;
  bool nan = false;
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = std::exp2(x[i]);
    nan = nan || std::isnan(x[i]);
  }
  if (nan) {
    // 4-bit codes have no NaN: without this a broken row would look healthy.
    std::fill_n(p_out, n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  switch (mode) {
    case PMode::f32: break;
    case PMode::bf16:
      for (float& v : p) v = bf16_to_float(float_to_bf16(v));
      break;
    case PMode::e4m3: round_e4m3_tile(p_scale, p); break;
    case PMode::e4m3_loglin: round_loglin_tile(p_scale, x, p); break;
    case PMode::mxfp4: round_format_tile(kMxfp4, p); break;
    case PMode::nvfp4: round_format_tile(kNvfp4, p); break;
    case PMode::nvfp4_underflow: round_underflow_tile(p); break;
    case PMode::nvfp4_two_level: round_two_level_tile(p); break;
    case PMode::mxfp4_direct_fast:
    case PMode::mxfp4_direct_accurate:
      for (std::int64_t b = 0; b < kKeyTile; b += kMxBlock) {
        round_direct_block(mode == PMode::mxfp4_direct_accurate, x.data() + b, p.data() + b);
      }
      break;
  }
  std::copy_n(p.begin(), n, p_out);
}

}  // namespace mpfa
