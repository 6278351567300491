#include "cpu/round_p.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "attention/probabilities.hpp"
#include "cpu/tile_ops.hpp"

namespace mpfa::cpu {
namespace {

void round_bf16(float* p) {
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(p[i]);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
    p[i] = p[i] != p[i] ? p[i] : std::bit_cast<float>(rounded);
  }
}

/// RN_e4m3(p * scale) / scale for p in [0, 1] and scale <= 448: nothing saturates, so rounding is all there is.
void round_e4m3(float scale, float* p) {
  constexpr float kMinNormal = 0x1p-6F;
  constexpr float kSubnormalMagic = 0x1.8p14F;  // adding it leaves multiples of 2^-9
  const float inverse = 1.0F / scale;
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    const float v = p[i] * scale;
    const auto bits = std::bit_cast<std::uint32_t>(v);
    const float normal = std::bit_cast<float>((bits + 0x7FFFFU + ((bits >> 20) & 1U)) & 0xFFF00000U);
    const float subnormal = (v + kSubnormalMagic) - kSubnormalMagic;
    const float rounded = v < kMinNormal ? subnormal : normal;
    p[i] = v != v ? v : rounded * inverse;
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
  float exact = 0.0F;
  if (mode == PMode::f32 || mode == PMode::bf16 || mode == PMode::e4m3) {
    exact = row_exp2(x, top, kKeyTile, x);
    if (mode == PMode::bf16) round_bf16(x);
    if (mode == PMode::e4m3) round_e4m3(p_scale, x);
  } else {
    float log2_p[kKeyTile];
    for (std::int64_t i = 0; i < kKeyTile; ++i) log2_p[i] = x[i] - top;
    if (!same_codes) exact = row_exp2(log2_p, 0.0F, kKeyTile, x);
    round_probabilities(mode, p_scale, log2_p, x, kKeyTile);
  }
  return same_codes ? sum(x) : exact;
}

}  // namespace mpfa::cpu
