#include "cpu/integer_scores.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/integer_scores.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {

#include "cpu/byte_codes-inl.hpp"

#if HWY_TARGET <= HWY_AVX3
constexpr std::int64_t kLanes = 16;

/// One block of a row, lane r of a packed panel whose scale, start and integers stand `width` words apart from `scale`,
/// `start` and `integers`. False when an element is not finite or out of proportion.
MPFA_BYTES_ATTR bool pack_block(const IntegerForm& keys, const IntegerShape& shape, int levels, const float* x,
                                std::int32_t* scale, std::int32_t* start, std::int32_t* integers) {
  const std::int64_t bytes = shape.bytes();
  __m512i bits = _mm512_setzero_si512();
  for (std::int64_t c = 0; c < shape.block; c += kLanes) {
    bits = _mm512_max_epu32(bits, _mm512_and_si512(_mm512_loadu_si512(x + c), _mm512_set1_epi32(0x7FFFFFFF)));
  }
  const auto top = std::bit_cast<float>(_mm512_reduce_max_epu32(bits));
  const bool fits = top > 0x1p-100F && top < 0x1p100F;
  const auto most = static_cast<float>(levels);
  const __m512 unit = _mm512_set1_ps(fits ? most / top : 0.0F);
  __m512i sum = _mm512_setzero_si512();
  for (std::int64_t c = 0; c < shape.block; c += kLanes) {
    const __mmask16 kept = fits ? 0xFFFF : 0;
    const __m512i whole = _mm512_maskz_cvtps_epi32(kept, _mm512_mul_ps(_mm512_loadu_ps(x + c), unit));
    sum = _mm512_add_epi32(sum, whole);
    alignas(32) std::int32_t packed[8];
    if (shape.type == Integers::unsigned_bytes) {
      _mm_store_si128(reinterpret_cast<__m128i*>(packed), _mm512_cvtepi32_epi8(whole));
    } else {
      _mm256_store_si256(reinterpret_cast<__m256i*>(packed), _mm512_cvtepi32_epi16(whole));
    }
    for (std::int64_t i = 0; i < 4 * bytes; ++i) integers[(c * bytes / 4 + i) * shape.width] = packed[i];
  }
  *scale = std::bit_cast<std::int32_t>(fits ? top / (most * keys.multiplier) : 0.0F);
  *start = -keys.offset * _mm512_reduce_add_epi32(sum);
  return fits || top == 0.0F;
}

std::uint32_t PackPanel(const IntegerForm& keys, const IntegerShape& shape, int levels, std::int64_t count,
                        const float* q, std::int32_t* packed) {
  std::fill_n(packed, shape.size(), 0);
  const std::int64_t blocks = shape.blocks();
  std::int32_t* const starts = packed + blocks * shape.width;
  std::int32_t* const integers = starts + blocks * shape.width;
  std::uint32_t special = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    bool fits = true;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t at = b * shape.width + r;
      fits &= pack_block(keys, shape, levels, q + r * shape.channels + b * shape.block, packed + at, starts + at,
                         integers + b * shape.block * shape.bytes() / 4 * shape.width + r);
    }
    if (!fits) special |= std::uint32_t{1} << r;
  }
  return special;
}

template <Integers kType>
MPFA_BYTES_ATTR HWY_INLINE __m512i add_products(__m512i sum, __m512i key, __m512i row) {
  return kType == Integers::unsigned_bytes ? add_dots(sum, key, row) : add_word_dots(sum, key, row);
}

/// x (+)= the products of kKeys keys and a panel of kVectors vectors over one block of channels: kBlock of them, or any
/// number with 0.
template <Integers kType, int kBlock, int kKeys, int kVectors>
MPFA_BYTES_ATTR HWY_INLINE void score_block(const IntegerShape& shape, std::int64_t blocks, bool first,
                                            const std::byte* k, const float* factors, const std::int32_t* scale,
                                            const std::int32_t* start, const std::int32_t* integers, float* x) {
  constexpr std::int64_t kWidth = kVectors * kLanes, kBytes = kType == Integers::unsigned_bytes ? 1 : 2;
  const std::int64_t stride = shape.channels * kBytes;
  __m512i sum[kKeys][kVectors];
  for (auto& row : sum) {
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_loadu_si512(start + v * kLanes);
  }
  const std::int64_t bytes = (kBlock == 0 ? shape.block : kBlock) * kBytes;
#pragma GCC unroll 8
  for (std::int64_t c = 0; c < bytes; c += 4, integers += kWidth) {
    __m512i rows[kVectors];
    for (int v = 0; v < kVectors; ++v) rows[v] = _mm512_loadu_si512(integers + v * kLanes);
    for (int j = 0; j < kKeys; ++j) {
      std::int32_t four;
      std::memcpy(&four, k + j * stride + c, sizeof(four));
      const __m512i key = _mm512_set1_epi32(four);
      for (int v = 0; v < kVectors; ++v) sum[j][v] = add_products<kType>(sum[j][v], key, rows[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const __m512 unit = _mm512_castsi512_ps(_mm512_loadu_si512(scale + v * kLanes));
    for (int j = 0; j < kKeys; ++j) {
      float* const at = x + j * kWidth + v * kLanes;
      const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[j][v]), unit);
      _mm512_storeu_ps(at, _mm512_fmadd_ps(product, _mm512_set1_ps(factors[j * blocks]), before));
    }
  }
}

template <Integers kType, int kBlock, int kKeys, int kVectors>
MPFA_BYTES_ATTR void score_keys_of(const IntegerShape& shape, std::int64_t blocks, const std::byte* k,
                                   const float* factors, const std::int32_t* packed, float* x) {
  constexpr std::int64_t kWidth = kVectors * kLanes;
  const std::int64_t bytes = shape.block * shape.bytes();
  const std::int32_t *start = packed + blocks * kWidth, *integers = start + blocks * kWidth;
  for (std::int64_t b = 0; b < blocks; ++b) {
    score_block<kType, kBlock, kKeys, kVectors>(shape, blocks, b == 0, k + b * bytes, factors + b, packed + b * kWidth,
                                                start + b * kWidth, integers + b * bytes / 4 * kWidth, x);
  }
}

template <Integers kType, int kBlock, int kVectors>
void score_all_of(const IntegerShape& shape, std::int64_t keys, const std::byte* k, const float* factors,
                  const std::int32_t* packed, float* x) {
  constexpr int kKeys = 16 / kVectors;  // sums, which is as many as hide the latency
  const std::int64_t blocks = shape.blocks(), stride = shape.channels * shape.bytes();
  std::int64_t j = 0;
  const auto from = [&](auto function) {
    function(shape, blocks, k + j * stride, factors + j * blocks, packed, x + j * kVectors * kLanes);
  };
  for (; j + kKeys <= keys; j += kKeys) from(score_keys_of<kType, kBlock, kKeys, kVectors>);
  for (; j < keys; ++j) from(score_keys_of<kType, kBlock, 1, kVectors>);
}

template <Integers kType>
void score_type(const IntegerShape& shape, std::int64_t keys, const std::byte* k, const float* factors,
                const std::int32_t* packed, float* x) {
  constexpr int kShort = 16;  // loops over such blocks are so short that they are unrolled
  const bool is_short = shape.block == kShort, narrow = shape.width == kLanes;
  const auto score = is_short ? (narrow ? score_all_of<kType, kShort, 1> : score_all_of<kType, kShort, 2>)
                              : (narrow ? score_all_of<kType, 0, 1> : score_all_of<kType, 0, 2>);
  score(shape, keys, k, factors, packed, x);
}

void ScoreIntegers(const IntegerShape& shape, std::int64_t keys, const void* k, const float* factors,
                   const std::int32_t* packed, float* x) {
  const bool bytes = shape.type == Integers::unsigned_bytes;
  const auto score = bytes ? score_type<Integers::unsigned_bytes> : score_type<Integers::signed_words>;
  score(shape, keys, static_cast<const std::byte*>(k), factors, packed, x);
}
#else
std::uint32_t PackPanel(const IntegerForm&, const IntegerShape&, int, std::int64_t, const float*, std::int32_t*) {
  return 0;
}
void ScoreIntegers(const IntegerShape&, std::int64_t, const void*, const float*, const std::int32_t*, float*) {}
#endif

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(PackPanel);
HWY_EXPORT(ScoreIntegers);

std::uint32_t pack_integer_panel(const IntegerForm& keys, const IntegerShape& shape, int levels, std::int64_t count,
                                 const float* q, std::int32_t* packed) {
  return HWY_DYNAMIC_DISPATCH(PackPanel)(keys, shape, levels, count, q, packed);
}
void integer_scores(const IntegerShape& shape, std::int64_t keys, const void* k, const float* factors,
                    const std::int32_t* packed, float* x) {
  HWY_DYNAMIC_DISPATCH(ScoreIntegers)(shape, keys, k, factors, packed, x);
}

}  // namespace mpfa::cpu
#endif
