#include "cpu/factor_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/dispatch.hpp"
#include "formats/words.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/factor_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define MPFA_HAVE_WORDS (HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR)

#if MPFA_HAVE_WORDS
constexpr std::size_t kVector = hn::MaxLanes(hn::CappedTag<float, 16>());
constexpr auto kKeys = static_cast<std::int64_t>(kVector);
constexpr std::int64_t kMostRowBytes = 64;  // longer scale rows take the scalar path

#include "cpu/word_codecs-inl.hpp"

using D = hn::CappedTag<float, kVector>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
using W = hn::Vec<DU>;

/// A factor from the lowest bits of a word; those above belong to other blocks. usual(x): decode_usual() will do for
/// all factors of the words.
struct AnyFactor {
  static HWY_INLINE bool usual(W) { return false; }
  static HWY_INLINE V decode_usual(W) { return hn::Zero(D()); }
};
struct E8m0Factor {
  static constexpr std::int64_t kBytes = 1;
  /// Bytes from 1 to 254.
  static HWY_INLINE bool usual(W x) {
    const hn::Repartition<std::uint8_t, D> bytes;
    return hn::AllTrue(bytes, hn::Lt(hn::Sub(hn::BitCast(bytes, x), hn::Set(bytes, 1)), hn::Set(bytes, 254)));
  }
  static HWY_INLINE V decode_usual(W x) {
    return hn::BitCast(D(), hn::And(hn::ShiftLeft<23>(x), hn::Set(DU(), 0x7F800000U)));
  }
  static HWY_INLINE V decode(W x) {
    const DU du;
    const W exponent = hn::ShiftLeft<23>(x);
    const W bits = hn::And(exponent, hn::Set(du, 0x7F800000U));
    // Code 0 is 2^-127, which is subnormal, and code 255 NaN: both differ by this bit.
    const W small = hn::Max(bits, hn::Set(du, 0x00400000U));
    const auto is_nan = hn::Eq(bits, hn::Set(du, 0x7F800000U));
    return hn::BitCast(D(), hn::IfThenElse(is_nan, hn::Set(du, 0x7FC00000U), small));
  }
};
struct E4m3Factor {
  static constexpr std::int64_t kBytes = 1;
  static HWY_INLINE V decode(W x) { return E4m3<kVector>(nullptr).first(x); }
  /// No sign and no NaN: bytes below 0x7F.
  static HWY_INLINE bool usual(W x) {
    const hn::Repartition<std::uint8_t, D> bytes;
    return hn::AllTrue(bytes, hn::Lt(hn::BitCast(bytes, x), hn::Set(bytes, 0x7F)));
  }
  static HWY_INLINE V decode_usual(W x) {
    const W bits = hn::And(hn::ShiftLeft<20>(x), hn::Set(DU(), 0x07F00000U));
    return hn::Mul(hn::BitCast(D(), bits), hn::Set(D(), 0x1p120F));
  }
};
struct F16Factor : AnyFactor {
  static constexpr std::int64_t kBytes = 2;
  static HWY_INLINE V decode(W x) { return F16<kVector>(nullptr).first(x); }
};
struct F32Factor : AnyFactor {
  static constexpr std::int64_t kBytes = 4;
  static HWY_INLINE V decode(W x) {
    const V v = hn::BitCast(D(), x);
    return hn::IfThenZeroElse(hn::Eq(v, hn::Set(D(), formats::kZeroSentinel)), v);
  }
};

/// Bytes [4 * index, 4 * index + 4) of kKeys rows.
HWY_INLINE W scale_words(const std::byte* rows, std::int64_t stride, std::int64_t index) {
  const DU du;
  const auto* words = reinterpret_cast<const std::uint32_t*>(rows);
  if (stride == 4) return hn::LoadU(du, words);
  const hn::RebindToSigned<D> di;
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<std::int32_t>(stride)));
  return hn::GatherOffset(du, words + index, offsets);
}

/// Factors of up to kCount blocks of a word to columns of `out`.
template <class Factor, bool kUsual>
HWY_INLINE void decode_word(W bits, std::int64_t blocks, float* out) {
  constexpr int kCount = 4 / Factor::kBytes;
  const auto put = [&](int b) HWY_ATTR {
    if constexpr (kUsual) {
      hn::StoreU(Factor::decode_usual(bits), D(), out + b * kKeyTile);
    } else {
      hn::StoreU(Factor::decode(bits), D(), out + b * kKeyTile);
    }
    if constexpr (Factor::kBytes < 4) bits = hn::ShiftRight<8 * Factor::kBytes % 32>(bits);
  };
  if (blocks >= kCount) {
    for (int b = 0; b < kCount; ++b) put(b);  // a constant count, which compilers unroll
  } else {
    for (int b = 0; b < blocks; ++b) put(b);
  }
}

/// Words of kKeys rows of kRowBytes each that adjoin; rows of one or two bytes are the lowest ones of a word.
template <int kRowBytes, int kWords>
HWY_INLINE void load_rows(const std::byte* rows, W (&words)[kWords]) {
  const DU du;
  const auto* from = reinterpret_cast<const std::uint32_t*>(rows);
  const hn::Rebind<std::uint8_t, D> bytes;
  const hn::Rebind<std::uint16_t, D> halves;
  if constexpr (kRowBytes == 1)
    words[0] = hn::PromoteTo(du, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(rows)));
  if constexpr (kRowBytes == 2)
    words[0] = hn::PromoteTo(du, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(rows)));
  if constexpr (kRowBytes == 4) words[0] = hn::LoadU(du, from);
  if constexpr (kRowBytes == 8) hn::LoadInterleaved2(du, from, words[0], words[1]);
  if constexpr (kRowBytes == 16) hn::LoadInterleaved4(du, from, words[0], words[1], words[2], words[3]);
}

template <class Factor>
HWY_INLINE void decode_any(W bits, std::int64_t blocks, float* out) {
  if (Factor::usual(bits)) {
    decode_word<Factor, true>(bits, blocks, out);
  } else {
    decode_word<Factor, false>(bits, blocks, out);
  }
}

/// columns() of `count` rows that adjoin, a multiple of kKeys.
template <class Factor, int kRowBytes>
void whole_columns(const std::byte* rows, std::int64_t count, float* factors) {
  constexpr int kWords = std::max(kRowBytes / 4, 1);
  constexpr std::int64_t kBlocks = kRowBytes / kWords / Factor::kBytes;  // of a word
  for (std::int64_t j = 0; j < count; j += kKeys) {
    W bits[kWords];
    load_rows<kRowBytes>(rows + j * kRowBytes, bits);
    for (int w = 0; w < kWords; ++w) decode_any<Factor>(bits[w], kBlocks, factors + w * kBlocks * kKeyTile + j);
  }
}

template <class Factor, int kRowBytes>
constexpr WholeFactors whole() {
  if constexpr (kRowBytes % Factor::kBytes == 0) return whole_columns<Factor, kRowBytes>;
  return nullptr;
}

template <class Factor>
WholeFactors whole_of(std::int64_t row_bytes) {
  switch (row_bytes) {
    case 1: return whole<Factor, 1>();
    case 2: return whole<Factor, 2>();
    case 4: return whole<Factor, 4>();
    case 8: return whole<Factor, 8>();
    case 16: return whole<Factor, 16>();
    default: return nullptr;
  }
}

template <class Factor>
void columns(const ScaleRows& x, float* factors) {
  constexpr std::int64_t kPerWord = 4 / Factor::kBytes;
  const std::int64_t row_bytes = x.blocks * Factor::kBytes;
  const std::int64_t words = (row_bytes + 3) / 4;
  const WholeFactors whole = x.stride == row_bytes && x.count % kKeys == 0 ? whole_of<Factor>(row_bytes) : nullptr;
  if (whole != nullptr) return whole(x.bytes, x.count, factors);
  HWY_ALIGN std::byte copy[kVector * kMostRowBytes];
  for (std::int64_t j = 0; j < x.count; j += kKeys) {
    const std::byte* rows = x.bytes + j * x.stride;
    std::int64_t stride = x.stride;
    // Whole words of whole vectors are read, which must not reach past the last row.
    if (x.count - j < kKeys || row_bytes % 4 != 0) {
      for (std::int64_t t = 0; t < kKeys; ++t) {
        std::memcpy(copy + t * words * 4, rows + std::min(t, x.count - j - 1) * stride,
                    static_cast<std::size_t>(row_bytes));
      }
      rows = copy;
      stride = words * 4;
    }
    for (std::int64_t w = 0; w < words; ++w) {
      decode_any<Factor>(scale_words(rows, stride, w), x.blocks - w * kPerWord, factors + w * kPerWord * kKeyTile + j);
    }
  }
}

WholeFactors FindWholeFactors(ScaleType type, std::int64_t blocks) {
  switch (type) {
    case ScaleType::e8m0: return whole_of<E8m0Factor>(blocks);
    case ScaleType::e4m3: return whole_of<E4m3Factor>(blocks);
    case ScaleType::f16: return whole_of<F16Factor>(blocks * 2);
    case ScaleType::f32: return whole_of<F32Factor>(blocks * 4);
    default: return nullptr;
  }
}

/// factors as they are stored, times what all of them share.
void scale_columns(const ScaleRows& x, float* factors) {
  if (x.multiplier == 1.0F && x.divisor == 1.0F) return;
  for (std::int64_t i = 0; i < x.blocks * kKeyTile; i += kKeys) {
    const V factor = hn::Mul(hn::LoadU(D(), factors + i), hn::Set(D(), x.multiplier));
    hn::StoreU(hn::Div(factor, hn::Set(D(), x.divisor)), D(), factors + i);
  }
}

bool FactorColumns(ScaleType type, const ScaleRows& x, float* factors) {
  if (x.blocks * 4 > kMostRowBytes) return false;
  switch (type) {
    case ScaleType::e8m0: columns<E8m0Factor>(x, factors); break;
    case ScaleType::e4m3: columns<E4m3Factor>(x, factors); break;
    case ScaleType::f16:
    case ScaleType::f16_zero: columns<F16Factor>(x, factors); break;
    case ScaleType::f32: columns<F32Factor>(x, factors); break;
    default: return false;
  }
  scale_columns(x, factors);
  return true;
}
#else
WholeFactors FindWholeFactors(ScaleType, std::int64_t) {
  return nullptr;
}
bool FactorColumns(ScaleType, const ScaleRows&, float*) {
  return false;
}
#endif
#undef MPFA_HAVE_WORDS

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(FactorColumns);
HWY_EXPORT(FindWholeFactors);

WholeFactors whole_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t row_stride, float global) {
  const std::int64_t blocks = head_dim / formats::channels_per_block(f, head_dim);
  const std::int64_t bytes = f.scale == ScaleType::f32 ? 4 : f.scale == ScaleType::f16 ? 2 : 1;
  const bool as_stored = f.element != Element::lloyd4 && (f.scale != ScaleType::e4m3 || global == 1.0F);
  return as_stored && f.block_keys == 1 && row_stride == blocks * bytes
             ? HWY_DYNAMIC_DISPATCH(FindWholeFactors)(f.scale, blocks)
             : nullptr;
}

void read_factor_columns(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                         const ConstPageBytes& page, float global, float* factors, float* minima, float* spare) {
  const std::int64_t blocks = head_dim / formats::channels_per_block(f, head_dim);
  const bool has_minimum = f.scale == ScaleType::f16_zero;
  // Formats without scales have no pointer to move.
  const std::byte* const scales = page.scales == nullptr ? nullptr : page.scales + slot * page.scale_row_stride;
  ScaleRows rows{scales, page.scale_row_stride, blocks, count, 1.0F, 1.0F};
  if (has_minimum) rows.blocks *= 2;  // the minimum of a block follows its scale
  if (f.scale == ScaleType::e4m3) rows.multiplier = global;
  if (f.element == Element::lloyd4) rows.divisor = std::sqrt(static_cast<float>(head_dim));
  if (f.block_keys == 1 && HWY_DYNAMIC_DISPATCH(FactorColumns)(f.scale, rows, factors)) {
    if (has_minimum) std::copy_n(factors + kKeyTile, count, minima);
    return;
  }
  formats::read_factors(f, head_dim, slot, count, page, global, spare, minima);
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t j = 0; j < count; ++j) factors[b * kKeyTile + j] = spare[j * blocks + b];
  }
}

}  // namespace mpfa::cpu
#endif
