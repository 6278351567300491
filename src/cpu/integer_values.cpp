#include "cpu/integer_values.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/integer_values.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {

#include "cpu/byte_codes-inl.hpp"

#if HWY_TARGET <= HWY_AVX3
constexpr std::int64_t kLanes = 16;

void Pair(const IntegerKeys& keys, std::int64_t channels, const std::int16_t* words, std::int16_t* out) {
  for (std::int64_t i = keys.first_pair(); i < keys.last_pair(); ++i) {
    const auto load = [&](const std::int16_t* at)
                          HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
    const std::int16_t* row = words + 2 * i * channels;
    auto* to = reinterpret_cast<__m128i*>(out + 2 * i * channels);
    for (std::int64_t c = 0; c < channels; c += 8, row += 8, to += 2) {
      const __m128i first = load(row), second = load(row + channels);
      _mm_storeu_si128(to, _mm_unpacklo_epi16(first, second));
      _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(first, second));
    }
  }
}

MPFA_BYTES_ATTR void Fold(const IntegerKeys& keys, std::int64_t channels, float limit, std::int16_t* words,
                          float* factors) {
  const std::int64_t blocks = channels / kLanes;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const float* from = factors + j * blocks;
    float top = 0.0F;
    for (std::int64_t b = 0; b < blocks; ++b) top = from[b] > top ? from[b] : top;
    const float binade = std::bit_cast<float>(std::bit_cast<std::uint32_t>(top) & 0x7F800000U);
    const float unit = top == 0.0F ? 0.0F : limit / (2.0F * binade);
    for (std::int64_t b = 0; b < blocks; ++b) {
      auto* at = reinterpret_cast<__m256i*>(words + j * channels + b * kLanes);
      const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(at)));
      const __m512 folded = _mm512_mul_ps(x, _mm512_set1_ps(from[b] * unit));
      _mm256_storeu_si256(at, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(folded)));
    }
    factors[j] = top == 0.0F ? 0.0F : 1.0F / unit;  // those of later keys are further on
  }
}

/// What makes 15 bits of weights, and what these are worth. `top` is the largest weight as bits, whose NaNs are above
/// all numbers; `share` is the part of the sum of all weights that has to fit as well.
struct Unit {
  __m512 unit, worth;
};
MPFA_BYTES_ATTR HWY_INLINE Unit unit_of(__m512i top, __m512 share, float multiplier) {
  const __mmask16 broken = _mm512_cmpge_epu32_mask(top, _mm512_set1_epi32(0x7F800000));
  // A weight just below a power of two must not be rounded up to it. Below 2^-111 the unit would be no normal float.
  __m512i bits = _mm512_max_epu32(top, _mm512_castps_si512(share));
  bits = _mm512_add_epi32(bits, _mm512_set1_epi32(0x100));
  bits = _mm512_max_epu32(bits, _mm512_set1_epi32(16 << 23));
  const __m512i above = _mm512_sub_epi32(_mm512_srli_epi32(bits, 23), _mm512_set1_epi32(14));
  const __m512i unit = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), above), 23);
  const __m512 step = _mm512_castsi512_ps(_mm512_slli_epi32(above, 23));
  const __m512 worth = _mm512_mul_ps(step, _mm512_set1_ps(1.0F / multiplier));  // a power of two
  const __m512 nan = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
  return {_mm512_castsi512_ps(unit), _mm512_mask_blend_ps(broken, worth, nan)};
}

/// Units of kBlocks blocks of V for a vector of rows.
template <bool kSum, int kBlocks>
MPFA_BYTES_ATTR void find_units(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                                std::int64_t stride, float multiplier, float share, float* units) {
  __m512i top[kBlocks];
  __m512 sum[kBlocks];
  for (int b = 0; b < kBlocks; ++b) top[b] = _mm512_setzero_si512(), sum[b] = _mm512_setzero_ps();
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const __m512 x = _mm512_loadu_ps(p + j * width);
    for (int b = 0; b < kBlocks; ++b) {
      const __m512 w = _mm512_mul_ps(x, _mm512_set1_ps(factors[j * stride + b]));
      top[b] = _mm512_max_epu32(top[b], _mm512_castps_si512(w));
      if constexpr (kSum) sum[b] = _mm512_add_ps(sum[b], w);
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    const Unit u = unit_of(top[b], _mm512_mul_ps(sum[b], _mm512_set1_ps(share)), multiplier);
    _mm512_storeu_ps(units + 2 * b * width, u.unit);
    _mm512_storeu_ps(units + (2 * b + 1) * width, u.worth);
  }
}

template <bool kSum>
void find_all_units(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                    std::int64_t blocks, float multiplier, float share, float* units) {
  for (std::int64_t r = 0; r < width; r += kLanes) {
    std::int64_t b = 0;
    const auto from = [&](auto function) {
      function(keys, width, p + r, factors + b, blocks, multiplier, share, units + 2 * b * width + r);
    };
    for (; b + 4 <= blocks; b += 4) from(find_units<kSum, 4>);
    for (; b < blocks; ++b) from(find_units<kSum, 1>);
  }
}

void Units(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors, std::int64_t blocks,
           const IntegerForm& form, float* units) {
  // Sums of a tile's products have 31 bits. Weights of 15 bits leave 10 for elements; with more, their sum is bounded.
  const bool bounded = form.most < 1024.0F;
  const float share = std::exp2(std::ceil(std::log2(form.most * 0x1.02p-16F)));
  const auto find = bounded ? find_all_units<false> : find_all_units<true>;
  find(keys, width, p, factors, blocks, form.multiplier, share, units);
}

MPFA_BYTES_ATTR void Weights(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                             std::int64_t stride, const float* units, std::uint32_t* weights) {
  const __m512 magic = _mm512_set1_ps(0x1p23F);  // the lowest bits take the nearest integer
  const __m512i low_half = _mm512_set1_epi32(0xFFFF);
  constexpr int kSelect = 0xCA;  // a ? b : c
  for (std::int64_t r = 0; r < width; r += kLanes) {
    const __m512 unit = _mm512_loadu_ps(units + r);
    const auto whole = [&](std::int64_t j) MPFA_BYTES_ATTR {
      const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(p + j * width + r), _mm512_set1_ps(factors[j * stride]));
      return _mm512_castps_si512(_mm512_fmadd_ps(w, unit, magic));
    };
    const auto store = [&](std::int64_t i, __m512i first, __m512i second) MPFA_BYTES_ATTR {
      const __m512i high = _mm512_slli_epi32(second, 16);
      _mm512_storeu_si512(weights + i * width + r, _mm512_ternarylogic_epi32(low_half, first, high, kSelect));
    };
    std::int64_t j = keys.begin;
    if (j % 2 != 0) store(j / 2, _mm512_setzero_si512(), whole(j)), ++j;
    for (; j + 2 <= keys.end; j += 2) store(j / 2, whole(j), whole(j + 1));
    if (j < keys.end) store(j / 2, whole(j), _mm512_setzero_si512());
  }
}

/// kChannels channels of all rows of a panel.
template <int kChannels, int kVectors>
MPFA_BYTES_ATTR void add_channels(const IntegerKeys& keys, const std::int16_t* v, std::int64_t stride,
                                  const std::uint32_t* weights, const float* worths, const float* keep, float* o) {
  constexpr std::int64_t kWidth = kVectors * kLanes;
  __m512i sum[kChannels][kVectors];
  for (auto& row : sum) {
    for (__m512i& x : row) x = _mm512_setzero_si512();
  }
  for (std::int64_t i = keys.first_pair(); i < keys.last_pair(); ++i) {
    __m512i w[kVectors];
    for (int n = 0; n < kVectors; ++n) w[n] = _mm512_loadu_si512(weights + i * kWidth + n * kLanes);
    for (int c = 0; c < kChannels; ++c) {
      std::int32_t pair;
      std::memcpy(&pair, v + 2 * (i * stride + c), sizeof(pair));
      const __m512i values = _mm512_set1_epi32(pair);
      for (int n = 0; n < kVectors; ++n) sum[c][n] = add_word_dots(sum[c][n], w[n], values);
    }
  }
  for (int n = 0; n < kVectors; ++n) {
    const __m512 worth = _mm512_loadu_ps(worths + n * kLanes);
    const __m512 kept = _mm512_loadu_ps(keep + n * kLanes);
    for (int c = 0; c < kChannels; ++c) {
      float* const at = o + c * kWidth + n * kLanes;
      const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[c][n]), worth);
      _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), kept, x));
    }
  }
}

void Values(const IntegerKeys& keys, std::int64_t channels, std::int64_t width, const std::int16_t* v,
            std::int64_t stride, const std::uint32_t* weights, const float* units, const float* keep, float* o) {
  const auto add = width == kLanes ? add_channels<16, 1> : add_channels<8, 2>;
  for (std::int64_t c = 0; c < channels; c += width == kLanes ? 16 : 8) {
    add(keys, v + 2 * c, stride, weights, units + width, keep, o + c * width);
  }
}
#else
void Pair(const IntegerKeys&, std::int64_t, const std::int16_t*, std::int16_t*) {}
void Fold(const IntegerKeys&, std::int64_t, float, std::int16_t*, float*) {}
void Units(const IntegerKeys&, std::int64_t, const float*, const float*, std::int64_t, const IntegerForm&, float*) {}
void Weights(const IntegerKeys&, std::int64_t, const float*, const float*, std::int64_t, const float*, std::uint32_t*) {
}
void Values(const IntegerKeys&, std::int64_t, std::int64_t, const std::int16_t*, std::int64_t, const std::uint32_t*,
            const float*, const float*, float*) {}
#endif

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Pair);
HWY_EXPORT(Fold);
HWY_EXPORT(Units);
HWY_EXPORT(Weights);
HWY_EXPORT(Values);

void pair_keys(const IntegerKeys& keys, std::int64_t channels, const std::int16_t* words, std::int16_t* out) {
  HWY_DYNAMIC_DISPATCH(Pair)(keys, channels, words, out);
}
void fold_blocks(const IntegerKeys& keys, std::int64_t channels, float limit, std::int16_t* words, float* factors) {
  HWY_DYNAMIC_DISPATCH(Fold)(keys, channels, limit, words, factors);
}
void integer_units(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                   std::int64_t blocks, const IntegerForm& form, float* units) {
  HWY_DYNAMIC_DISPATCH(Units)(keys, width, p, factors, blocks, form, units);
}
void integer_weights(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                     std::int64_t stride, const float* units, std::uint32_t* weights) {
  HWY_DYNAMIC_DISPATCH(Weights)(keys, width, p, factors, stride, units, weights);
}
void integer_values(const IntegerKeys& keys, std::int64_t channels, std::int64_t width, const std::int16_t* v,
                    std::int64_t stride, const std::uint32_t* weights, const float* units, const float* keep,
                    float* o) {
  HWY_DYNAMIC_DISPATCH(Values)(keys, channels, width, v, stride, weights, units, keep, o);
}

}  // namespace mpfa::cpu
#endif
