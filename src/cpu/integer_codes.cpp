#include "cpu/integer_codes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/integer_codes.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {

#include "cpu/byte_codes-inl.hpp"

#if HWY_TARGET <= HWY_AVX3
constexpr float kE4m3Multiplier = 64.0F;  // the largest that leaves 448 in 16 bits

bool Form(const formats::WordFormat& format, std::int64_t channels, Integers type, IntegerForm& form) {
  if (!have_bytes() || format.has_minimum || channels % 32 != 0 || format.block % 16 != 0) return false;
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
#else
bool Form(const formats::WordFormat&, std::int64_t, Integers, IntegerForm&) {
  return false;
}
std::uint64_t Expand(const IntegerForm&, const std::byte*, std::int64_t, std::int64_t, std::int64_t, void*) {
  return 0;
}
#endif

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Form);
HWY_EXPORT(Expand);

bool integer_form(const formats::WordFormat& format, std::int64_t channels, Integers type, IntegerForm& form) {
  return HWY_DYNAMIC_DISPATCH(Form)(format, channels, type, form);
}
std::uint64_t expand_integers(const IntegerForm& form, const std::byte* codes, std::int64_t stride, std::int64_t keys,
                              std::int64_t channels, void* out) {
  return HWY_DYNAMIC_DISPATCH(Expand)(form, codes, stride, keys, channels, out);
}

}  // namespace mpfa::cpu
#endif
