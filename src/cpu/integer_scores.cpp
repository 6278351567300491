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
constexpr float kE4m3Multiplier = 64.0F;  // the largest that leaves 448 in 16 bits

bool Form(const formats::WordFormat& format, std::int64_t channels, Integers type, IntegerForm& form) {
  if (!have_bytes() || format.has_minimum || channels % 32 != 0 || format.block % kLanes != 0) return false;
  const bool words = type == Integers::signed_words;
  form = {format.code, type, {}, 0, 1.0F, 0.0F};
  if (format.code == formats::WordCode::int8) {
    form.offset = words ? 0 : 128;
    form.most = 128.0F;
    return true;
  }
  if (format.code == formats::WordCode::e4m3) {
    form.multiplier = kE4m3Multiplier;
    form.most = 448.0F * kE4m3Multiplier;
    return words;
  }
  if (format.code != formats::WordCode::table16) return false;
  const std::optional<ByteCodes> codes = byte_codes(format.table->data());
  if (!codes) return false;
  form.multiplier = codes->multiplier;
  form.offset = words ? 0 : codes->offset;
  for (int i = 0; i < 16; ++i) {
    const int element = codes->table[i] - codes->offset;
    form.most = std::max(form.most, static_cast<float>(std::abs(element)));
    form.table[i] = static_cast<std::uint8_t>(element + form.offset);
  }
  return true;
}

/// What e4m3 codes below 32 become; others become 0.
constexpr std::array<std::uint8_t, 64> small_e4m3() {
  std::array<std::uint8_t, 64> small{};
  for (int code = 0; code < 32; ++code) {
    const int exponent = code < 8 ? 1 : code / 8, mantissa = code < 8 ? code : 8 + code % 8;
    const int eighths = mantissa << (exponent - 1);  // nearest, ties to even
    small[code] = static_cast<std::uint8_t>((eighths + 3 + (eighths / 8 & 1)) / 8);
  }
  return small;
}

/// Rows of e4m3 codes as words, those below 2^-3 rounded. Bits of the result: keys with a NaN.
MPFA_BYTES_ATTR std::uint64_t expand_e4m3(const std::byte* codes, std::int64_t stride, std::int64_t keys,
                                          std::int64_t channels, std::int16_t* out) {
  static constexpr auto kSmall = small_e4m3();
  const __m512i table = _mm512_loadu_si512(kSmall.data()), field = _mm512_set1_epi8(0x7F);
  std::uint64_t broken = 0;
  for (std::int64_t j = 0; j < keys; ++j, codes += stride, out += channels) {
    __mmask64 nan = 0;
    for (std::int64_t c = 0; c < channels; c += 64) {
      const __mmask64 some = channels - c >= 64 ? ~__mmask64{0} : 0xFFFFFFFF;  // a multiple of 32
      const __m512i bytes = _mm512_maskz_loadu_epi8(some, codes + c), size = _mm512_and_si512(bytes, field);
      const __mmask64 is_small = _mm512_cmplt_epu8_mask(size, _mm512_set1_epi8(32));
      const __mmask64 negative = _mm512_movepi8_mask(bytes);
      const __m512i small = _mm512_maskz_permutexvar_epi8(is_small, size, table);
      nan |= _mm512_cmpeq_epi8_mask(size, field);
      const auto words = [&](__m256i x, __m256i low, __mmask32 minus) MPFA_BYTES_ATTR {
        const __m512i code = _mm512_cvtepu8_epi16(x);
        const __m512i shift = _mm512_sub_epi16(_mm512_srli_epi16(code, 3), _mm512_set1_epi16(4));
        const __m512i mantissa = _mm512_ternarylogic_epi32(code, _mm512_set1_epi16(7), _mm512_set1_epi16(8), 0xEA);
        // Shifts that are negative leave 0.
        const __m512i word = _mm512_or_si512(_mm512_sllv_epi16(mantissa, shift), _mm512_cvtepu8_epi16(low));
        return _mm512_mask_sub_epi16(word, minus, _mm512_setzero_si512(), word);
      };
      _mm512_storeu_si512(out + c, words(_mm512_castsi512_si256(size), _mm512_castsi512_si256(small),
                                         static_cast<__mmask32>(negative)));
      if (channels - c < 64) break;
      _mm512_storeu_si512(out + c + 32, words(_mm512_extracti64x4_epi64(size, 1), _mm512_extracti64x4_epi64(small, 1),
                                              static_cast<__mmask32>(negative >> 32)));
    }
    if (nan != 0) broken |= std::uint64_t{1} << j;
  }
  return broken;
}

template <class Store>
MPFA_BYTES_ATTR HWY_INLINE void expand_row(const IntegerForm& form, const std::byte* codes, std::int64_t channels,
                                           Store store) {
  const auto load = [](const void* p) HWY_ATTR { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  const __m128i table = load(form.table.data()), low = _mm_set1_epi8(15);
  const __m128i flip = _mm_set1_epi8(static_cast<char>(form.offset));
  for (std::int64_t c = 0; c < channels; c += 32) {
    if (form.code != formats::WordCode::table16) {
      store(c, _mm_xor_si128(load(codes + c), flip));
      store(c + 16, _mm_xor_si128(load(codes + c + 16), flip));
      continue;
    }
    const __m128i pairs = load(codes + c / 2);
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(pairs, low));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(pairs, 4), low));
    store(c, _mm_unpacklo_epi8(even, odd));
    store(c + 16, _mm_unpackhi_epi8(even, odd));
  }
}

MPFA_BYTES_ATTR std::uint64_t Expand(const IntegerForm& form, const std::byte* codes, std::int64_t stride,
                                     std::int64_t keys, std::int64_t channels, void* out) {
  if (form.code == formats::WordCode::e4m3) {
    return expand_e4m3(codes, stride, keys, channels, static_cast<std::int16_t*>(out));
  }
  const bool words = form.type == Integers::signed_words;
  auto* bytes = static_cast<std::uint8_t*>(out);
  for (std::int64_t j = 0; j < keys; ++j, codes += stride, bytes += (words ? 2 : 1) * channels) {
    expand_row(form, codes, channels, [&](std::int64_t c, __m128i x) MPFA_BYTES_ATTR {
      if (words) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + 2 * c), _mm256_cvtepi8_epi16(x));
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + c), x);
      }
    });
  }
  return 0;
}

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
bool Form(const formats::WordFormat&, std::int64_t, Integers, IntegerForm&) {
  return false;
}
std::uint64_t Expand(const IntegerForm&, const std::byte*, std::int64_t, std::int64_t, std::int64_t, void*) {
  return 0;
}
std::uint32_t PackPanel(const IntegerForm&, const IntegerShape&, int, std::int64_t, const float*, std::int32_t*) {
  return 0;
}
void ScoreIntegers(const IntegerShape&, std::int64_t, const void*, const float*, const std::int32_t*, float*) {}
#endif

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Form);
HWY_EXPORT(Expand);
HWY_EXPORT(PackPanel);
HWY_EXPORT(ScoreIntegers);

bool integer_form(const formats::WordFormat& format, std::int64_t channels, Integers type, IntegerForm& form) {
  return HWY_DYNAMIC_DISPATCH(Form)(format, channels, type, form);
}
std::uint64_t expand_integers(const IntegerForm& form, const std::byte* codes, std::int64_t stride, std::int64_t keys,
                              std::int64_t channels, void* out) {
  return HWY_DYNAMIC_DISPATCH(Expand)(form, codes, stride, keys, channels, out);
}
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
