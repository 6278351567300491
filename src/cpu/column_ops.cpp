#include "cpu/column_ops.hpp"

#include <cmath>
#include <limits>

#include "cpu/tile_ops.hpp"
#include "mpfa/attention.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/column_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kLaneMultiple>;
using V = hn::Vec<D>;

#include "cpu/exp2-inl.hpp"
#include "cpu/p_codes-inl.hpp"

/// `top` where v is a NaN.
HWY_INLINE V larger(V v, V top) {
  return hn::IfThenElse(hn::Gt(v, top), v, top);
}

void ColumnMax(std::int64_t keys, std::int64_t width, float scale, const float* x, float* m, float* keep) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto factor = hn::Set(d, scale);
  for (std::int64_t r = 0; r < width; r += lanes) {
    const auto before = hn::LoadU(d, m + r);
    V even = none, odd = none;
    std::int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      even = larger(hn::LoadU(d, x + j * width + r), even);
      odd = larger(hn::LoadU(d, x + (j + 1) * width + r), odd);
    }
    if (j < keys) even = larger(hn::LoadU(d, x + j * width + r), even);
    const auto top = hn::Max(before, hn::Mul(hn::Max(even, odd), factor));
    const auto kept = hn::IfThenZeroElse(hn::Eq(before, none), Exp2(d, hn::Sub(before, top)));
    hn::StoreU(hn::IfThenElse(hn::Eq(top, none), hn::Set(d, 1.0F), kept), d, keep + r);
    hn::StoreU(top, d, m + r);
  }
}

/// One vector of columns: lanes `r` on of x, and their running maxima and factors.
struct Columns {
  std::int64_t keys, width;
  float* x;
  V factor, top;

  HWY_INLINE float* at(std::int64_t j) const { return x + j * width; }
  /// log2 p of key j; -inf where it is masked, NaN where the score is.
  HWY_INLINE V log2_p(std::int64_t j) const { return hn::Sub(hn::Mul(hn::LoadU(D(), at(j)), factor), top); }
};

/// Sums over the keys of a column: of p before and after rounding.
struct Sums {
  V exact, codes;
};

template <PMode kMode, bool kSameCodes>
HWY_INLINE Sums EachOf(const Columns& c, float p_scale) {
  const D d;
  const auto scale = hn::Set(d, p_scale);
  const auto inverse = hn::Set(d, 1.0F / p_scale);
  const auto offset = hn::Set(d, 8.0F * std::log2(p_scale) + 56.0F);
  constexpr bool kNeedsExp2 = kMode != PMode::e4m3_loglin || !kSameCodes;
  Sums sums{hn::Zero(d), hn::Zero(d)};
  for (std::int64_t j = 0; j < c.keys; ++j) {
    const auto log2_p = c.log2_p(j);
    V p = log2_p;
    if constexpr (kNeedsExp2) p = Exp2(d, log2_p);
    V rounded = p;
    if constexpr (kMode == PMode::bf16) rounded = DropMantissa<16>(p);
    if constexpr (kMode == PMode::e4m3) rounded = RoundE4m3(p, scale, inverse);
    if constexpr (kMode == PMode::e4m3_loglin) rounded = LogLinear(log2_p, offset, inverse);
    hn::StoreU(rounded, d, c.at(j));
    sums.exact = hn::Add(sums.exact, p);
    sums.codes = hn::Add(sums.codes, rounded);
  }
  return sums;
}

/// x = exp2(x), unrounded; `top` becomes the largest.
HWY_INLINE V Exp2Of(const Columns& c, V& top) {
  const D d;
  V sum = hn::Zero(d);
  top = hn::Zero(d);
  for (std::int64_t j = 0; j < c.keys; ++j) {
    const auto p = Exp2(d, c.log2_p(j));
    hn::StoreU(p, d, c.at(j));
    sum = hn::Add(sum, p);
    top = hn::Max(top, p);
  }
  return sum;
}

/// The modes with blocks along the keys. 4-bit codes have no NaN: that of a column shows in the exact sum alone.
HWY_INLINE Sums BlocksOf(PMode mode, const Columns& c, bool same_codes) {
  const D d;
  Sums sums{hn::Zero(d), hn::Zero(d)};
  if (mode == PMode::mxfp4_direct_fast || mode == PMode::mxfp4_direct_accurate) {
    for (std::int64_t j = 0; j < c.keys; ++j) {
      const auto log2_p = c.log2_p(j);
      hn::StoreU(log2_p, d, c.at(j));
      sums.exact = hn::Add(sums.exact, same_codes ? log2_p : Exp2(d, log2_p));
    }
    for (std::int64_t b = 0; b < c.keys; b += 32) {
      sums.codes = hn::Add(sums.codes, RoundDirect(mode == PMode::mxfp4_direct_accurate, c.at(b), c.width));
    }
    return sums;
  }
  V top;
  sums.exact = Exp2Of(c, top);
  if (mode == PMode::mxfp4) {
    for (std::int64_t b = 0; b < c.keys; b += 32) sums.codes = hn::Add(sums.codes, RoundMxfp4(c.at(b), c.width));
    return sums;
  }
  V lift = hn::Set(d, 1.0F);  // of the tile, over the e4m3 scales of its blocks
  if (mode == PMode::nvfp4_two_level) {
    const auto row_scale = hn::Div(top, hn::Set(d, 448.0F * 6.0F));
    lift = hn::IfThenElse(hn::Gt(row_scale, hn::Zero(d)), row_scale, lift);
  }
  for (std::int64_t b = 0; b < c.keys; b += 16) {
    const auto sum = mode == PMode::nvfp4_two_level
                         ? RoundNvfp4<true>(c.at(b), c.width, lift, false)
                         : RoundNvfp4<false>(c.at(b), c.width, lift, mode == PMode::nvfp4_underflow);
    sums.codes = hn::Add(sums.codes, sum);
  }
  return sums;
}

template <bool kSameCodes>
void ColumnRoundBy(PMode mode, float p_scale, std::int64_t keys, std::int64_t width, float scale, const float* m,
                   const float* keep, float* x, float* l) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t r = 0; r < width; r += lanes) {
    const auto top = hn::LoadU(d, m + r);
    // A row without keys has nothing but -inf; any finite maximum makes zeros of it.
    const Columns c{keys, width, x + r, hn::Set(d, scale), hn::IfThenElse(hn::Eq(top, none), hn::Zero(d), top)};
    Sums sums;
    switch (mode) {
      case PMode::f32: sums = EachOf<PMode::f32, kSameCodes>(c, p_scale); break;
      case PMode::bf16: sums = EachOf<PMode::bf16, kSameCodes>(c, p_scale); break;
      case PMode::e4m3: sums = EachOf<PMode::e4m3, kSameCodes>(c, p_scale); break;
      case PMode::e4m3_loglin: sums = EachOf<PMode::e4m3_loglin, kSameCodes>(c, p_scale); break;
      default: sums = BlocksOf(mode, c, kSameCodes); break;
    }
    const auto sum = kSameCodes ? hn::IfThenElse(hn::IsNaN(sums.exact), sums.exact, sums.codes) : sums.exact;
    hn::StoreU(hn::MulAdd(hn::LoadU(d, l + r), hn::LoadU(d, keep + r), sum), d, l + r);
  }
}

void ColumnRound(PMode mode, float p_scale, bool same_codes, std::int64_t keys, std::int64_t width, float scale,
                 const float* m, const float* keep, float* x, float* l) {
  if (same_codes) {
    ColumnRoundBy<true>(mode, p_scale, keys, width, scale, m, keep, x, l);
  } else {
    ColumnRoundBy<false>(mode, p_scale, keys, width, scale, m, keep, x, l);
  }
}

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(ColumnMax);
HWY_EXPORT(ColumnRound);

void column_max(std::int64_t keys, std::int64_t width, float scale, const float* x, float* m, float* keep) {
  HWY_DYNAMIC_DISPATCH(ColumnMax)(keys, width, scale, x, m, keep);
}
void column_round(PMode mode, float p_scale, bool same_codes, std::int64_t keys, std::int64_t width, float scale,
                  const float* m, const float* keep, float* x, float* l) {
  HWY_DYNAMIC_DISPATCH(ColumnRound)(mode, p_scale, same_codes, keys, width, scale, m, keep, x, l);
}

}  // namespace mpfa::cpu
#endif
