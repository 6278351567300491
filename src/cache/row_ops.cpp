#include "cache/row_ops.hpp"

#include <cmath>
#include <cstring>

#include "cache/convert.hpp"
#include "cache/hadamard.hpp"
#include "cache/rank_one.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cache/row_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::rows::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void Load(const void* data, DType t, std::int64_t d, float* x) {
  load_row(data, t, 0, 1, d, x);
}
void Subtract(float* x, const float* mean, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) x[i] -= mean[i];
}
void Add(float* x, const float* mean, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) x[i] += mean[i];
}
void RankOne(const float* a, const float* x, std::int64_t d, std::int64_t group, float* terms) {
  for (std::int64_t m = 0; m < group; ++m) terms[m] = rank_one_term(a + m * d, x, d);
}
void Hadamard(float* x, std::int64_t d) {
  hadamard_rows(x, 1, d, d);
}
void RotateHalves(float* x, const float* cos, const float* sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) turn_pair(x[i], x[i + half], cos[i], sin[i]);
}
void RotatePairs(float* x, const float* cos, const float* sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) turn_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
}
void ToBf16(const float* x, std::int64_t d, std::uint16_t* out) {
  for (std::int64_t i = 0; i < d; ++i) out[i] = float_to_bf16(x[i]);
}
void AddFinite(const float* x, std::int64_t d, double* sum, std::int64_t* skipped) {
  for (std::int64_t i = 0; i < d; ++i) {
    if (std::isfinite(x[i])) sum[i] += x[i];
    skipped[i] += std::isfinite(x[i]) ? 0 : 1;
  }
}
#else
namespace hn = hwy::HWY_NAMESPACE;

using formats::kFloatAbs;
using formats::kFloatInf;
using D = hn::CappedTag<float, formats::kRowMultiple>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using Half = hn::Rebind<std::uint16_t, D>;
using VF = hn::Vec<D>;

constexpr std::int64_t kLanes = hn::MaxLanes(D());

/// F16::decode: exponent and mantissa moved to float's place, times 2^112.
HWY_INLINE VF decode_f16(hn::Vec<Half> half) {
  const D d;
  const DU du;
  const DI di;
  const auto bits = hn::PromoteTo(du, half);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000U)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFU));
  const VF finite = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112F));
  const auto wide = hn::BitCast(di, magnitude);
  const auto inf = hn::RebindMask(d, hn::Gt(wide, hn::Set(di, 0x7BFF)));
  const auto nan = hn::RebindMask(d, hn::Gt(wide, hn::Set(di, 0x7C00)));
  const VF special =
      hn::IfThenElse(nan, hn::BitCast(d, hn::Set(du, formats::kFloatNan)), hn::BitCast(d, hn::Set(du, kFloatInf)));
  return hn::Or(hn::IfThenElse(inf, special, finite), hn::BitCast(d, sign));
}

void Load(const void* data, DType t, std::int64_t d, float* x) {
  const D df;
  const DU du;
  const Half half;
  const auto* floats = static_cast<const float*>(data);
  const auto* halves = static_cast<const std::uint16_t*>(data);
  std::int64_t i = 0;
  if (t == DType::f32) {
    for (; i + kLanes <= d; i += kLanes) hn::Store(hn::LoadU(df, floats + i), df, x + i);
  } else if (t == DType::bf16) {
    for (; i + kLanes <= d; i += kLanes) {
      const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(half, halves + i)));
      hn::Store(hn::BitCast(df, bits), df, x + i);
    }
  } else {
    for (; i + kLanes <= d; i += kLanes) hn::Store(decode_f16(hn::LoadU(half, halves + i)), df, x + i);
  }
  load_row(data, t, i, 1, d - i, x + i);
}

void Subtract(float* x, const float* mean, std::int64_t d) {
  const D df;
  std::int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) hn::Store(hn::Sub(hn::Load(df, x + i), hn::LoadU(df, mean + i)), df, x + i);
  for (; i < d; ++i) x[i] -= mean[i];
}

void Add(float* x, const float* mean, std::int64_t d) {
  const D df;
  std::int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) hn::Store(hn::Add(hn::Load(df, x + i), hn::LoadU(df, mean + i)), df, x + i);
  for (; i < d; ++i) x[i] += mean[i];
}

/// Lane l <- lane l ^ kDistance.
template <std::int64_t kDistance>
HWY_INLINE VF swap_lanes(VF v) {
  const D d;
  if constexpr (kDistance == 1) {
    return hn::Reverse2(d, v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (2 * kDistance == kLanes) {
    return hn::ConcatLowerUpper(d, v, v);
  } else {
    return hn::SwapAdjacentBlocks(v);
  }
}

/// Lane 0 is the sum of all, halves added to halves.
template <std::int64_t kDistance>
HWY_INLINE VF fold_lanes(VF v) {
  if constexpr (kDistance > 0) return fold_lanes<kDistance / 2>(hn::Add(v, swap_lanes<kDistance>(v)));
  return v;
}

void RankOne(const float* a, const float* x, std::int64_t d, std::int64_t group, float* terms) {
  const D df;
  constexpr std::int64_t kParts = kRankOneLanes / kLanes;
  for (std::int64_t m = 0; m < group; ++m, a += d) {
    if (d % kRankOneLanes != 0) {  // rows of the means are not padded
      terms[m] = rank_one_term(a, x, d);
      continue;
    }
    VF sum[kParts];
    for (VF& part : sum) part = hn::Zero(df);
    for (std::int64_t c = 0; c < d; c += kRankOneLanes) {
      for (std::int64_t p = 0; p < kParts; ++p) {
        const std::int64_t at = c + p * kLanes;
        sum[p] = hn::Add(sum[p], hn::Mul(hn::LoadU(df, a + at), hn::Load(df, x + at)));
      }
    }
    for (std::int64_t half = kParts / 2; half > 0; half /= 2) {
      for (std::int64_t p = 0; p < half; ++p) sum[p] = hn::Add(sum[p], sum[p + half]);
    }
    terms[m] = one_nan(hn::GetLane(fold_lanes<kLanes / 2>(sum[0])));
  }
}

/// Butterflies of lanes kDistance apart: the lower lane gets the sum, the upper one the difference.
template <std::int64_t kDistance>
HWY_INLINE VF butterfly(VF v) {
  const D d;
  const DU du;
  const auto bit = hn::Set(du, static_cast<std::uint32_t>(kDistance));
  const auto upper = hn::RebindMask(d, hn::TestBit(hn::Iota(du, 0), bit));
  const VF other = swap_lanes<kDistance>(v);
  return hn::IfThenElse(upper, hn::Sub(other, v), hn::Add(v, other));
}

template <std::int64_t kDistance>
HWY_INLINE VF butterflies_below(std::int64_t block, VF v) {
  if constexpr (kDistance < kLanes) {
    if (kDistance >= block) return v;
    return butterflies_below<2 * kDistance>(block, butterfly<kDistance>(v));
  }
  return v;
}

void Hadamard(float* x, std::int64_t d) {
  const D df;
  const std::int64_t block = hadamard_block(d);
  const VF norm = hn::Set(df, 1.0F / std::sqrt(static_cast<float>(block)));
  for (std::int64_t i = 0; i < d; i += kLanes) {
    hn::Store(butterflies_below<1>(block, hn::Load(df, x + i)), df, x + i);
  }
  for (std::int64_t half = kLanes; half < block; half *= 2) {
    for (std::int64_t i = 0; i < d; i += 2 * half) {
      for (std::int64_t j = i; j < i + half; j += kLanes) {
        const VF a = hn::Load(df, x + j), b = hn::Load(df, x + j + half);
        hn::Store(hn::Add(a, b), df, x + j);
        hn::Store(hn::Sub(a, b), df, x + j + half);
      }
    }
  }
  for (std::int64_t i = 0; i < d; i += kLanes) hn::Store(hn::Mul(hn::Load(df, x + i), norm), df, x + i);
}

void RotateHalves(float* x, const float* cos, const float* sin, std::int64_t half) {
  const D df;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + half + i);
    const VF c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), df, x + i);
    hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), df, x + half + i);
  }
  for (; i < half; ++i) turn_pair(x[i], x[i + half], cos[i], sin[i]);
}

void RotatePairs(float* x, const float* cos, const float* sin, std::int64_t half) {
  const D df;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    VF a, b;
    hn::LoadInterleaved2(df, x + 2 * i, a, b);
    const VF c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), hn::Add(hn::Mul(a, s), hn::Mul(b, c)), df, x + 2 * i);
  }
  for (; i < half; ++i) turn_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
}

void ToBf16(const float* x, std::int64_t d, std::uint16_t* out) {
  const D df;
  const DU du;
  const DI di;
  const Half half;
  std::int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const auto bits = hn::BitCast(du, hn::Load(df, x + i));
    const auto abs = hn::And(bits, hn::Set(du, kFloatAbs));
    const auto odd = hn::And(hn::ShiftRight<16>(abs), hn::Set(du, 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(abs, hn::Set(du, 0x7FFFU)), odd));
    const auto held = hn::Min(hn::BitCast(di, rounded), hn::Set(di, 0x7F7F));
    const auto wide = hn::BitCast(di, abs);
    const auto infinite = hn::Gt(wide, hn::Set(di, static_cast<std::int32_t>(kFloatInf - 1U)));
    const auto nan = hn::Gt(wide, hn::Set(di, static_cast<std::int32_t>(kFloatInf)));
    const auto special = hn::IfThenElse(nan, hn::Set(di, 0x7FC0), hn::Set(di, 0x7F80));
    const auto code = hn::BitCast(du, hn::IfThenElse(infinite, special, held));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U));
    hn::StoreU(hn::TruncateTo(half, hn::Or(sign, code)), half, out + i);
  }
  for (; i < d; ++i) out[i] = float_to_bf16(x[i]);
}

void AddFinite(const float* x, std::int64_t d, double* sum, std::int64_t* skipped) {
  const hn::CappedTag<double, formats::kRowMultiple / 2> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(dd));
  bool all = true;
  std::int64_t i = 0;
  for (; i + lanes <= d; i += lanes) {
    const auto v = hn::PromoteTo(dd, hn::LoadU(df, x + i));
    const auto finite = hn::IsFinite(v);
    all = all && hn::AllTrue(dd, finite);
    hn::StoreU(hn::IfThenElse(finite, hn::Add(hn::LoadU(dd, sum + i), v), hn::LoadU(dd, sum + i)), dd, sum + i);
  }
  for (; i < d; ++i) {
    if (std::isfinite(x[i])) sum[i] += x[i];
    all = all && std::isfinite(x[i]);
  }
  for (i = 0; !all && i < d; ++i) skipped[i] += std::isfinite(x[i]) ? 0 : 1;
}
#endif

}  // namespace mpfa::rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::rows {

HWY_EXPORT(Load);
HWY_EXPORT(Subtract);
HWY_EXPORT(Add);
HWY_EXPORT(RankOne);
HWY_EXPORT(Hadamard);
HWY_EXPORT(RotateHalves);
HWY_EXPORT(RotatePairs);
HWY_EXPORT(ToBf16);
HWY_EXPORT(AddFinite);

void load(const TensorView& t, std::int64_t offset, std::int64_t stride, std::int64_t d, float* x) {
  if (stride == 1) {
    const auto size = static_cast<std::int64_t>(dtype_bytes(t.dtype));
    HWY_DYNAMIC_DISPATCH(Load)(static_cast<const std::byte*>(t.data) + offset * size, t.dtype, d, x);
  } else {
    load_row(t.data, t.dtype, offset, stride, d, x);
  }
  for (std::int64_t i = d; i < formats::padded_row(d); ++i) x[i] = 0.0F;
}
void prefetch(const TensorView& t, std::int64_t offset, std::int64_t d) {
  const auto size = static_cast<std::int64_t>(dtype_bytes(t.dtype));
  const auto* row = static_cast<const std::byte*>(t.data) + offset * size;
  for (std::int64_t i = 0; i < d * size; i += 64) __builtin_prefetch(row + i);
}
void subtract(float* x, const float* mean, std::int64_t d) {
  HWY_DYNAMIC_DISPATCH(Subtract)(x, mean, d);
}
void add(float* x, const float* mean, std::int64_t d) {
  HWY_DYNAMIC_DISPATCH(Add)(x, mean, d);
}
void rank_one(const float* a, const float* x, std::int64_t d, std::int64_t group, float* terms) {
  HWY_DYNAMIC_DISPATCH(RankOne)(a, x, d, group, terms);
}
void hadamard(float* x, std::int64_t d) {
  HWY_DYNAMIC_DISPATCH(Hadamard)(x, d);
}
void rotate(float* x, const float* cos, const float* sin, std::int64_t half, RopeStyle style) {
  if (style == RopeStyle::half) {
    HWY_DYNAMIC_DISPATCH(RotateHalves)(x, cos, sin, half);
  } else {
    HWY_DYNAMIC_DISPATCH(RotatePairs)(x, cos, sin, half);
  }
}
void store(const float* x, std::int64_t d, const MutableTensorView& t, std::int64_t offset, std::int64_t stride) {
  if (t.dtype == DType::f32) {
    auto* to = static_cast<float*>(t.data) + offset;
    for (std::int64_t i = 0; i < d; ++i) to[i * stride] = x[i];
    return;
  }
  auto* to = static_cast<std::uint16_t*>(t.data) + offset;
  if (t.dtype == DType::bf16 && stride == 1) return to_bf16(x, d, to);
  for (std::int64_t i = 0; i < d; ++i) {
    const auto code = t.dtype == DType::bf16 ? formats::Bf16::encode(x[i]) : formats::F16::encode(x[i]);
    to[i * stride] = static_cast<std::uint16_t>(code.bits);
  }
}
void to_bf16(const float* x, std::int64_t d, std::uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(ToBf16)(x, d, out);
}
void add_finite(const float* x, std::int64_t d, double* sum, std::int64_t* skipped) {
  HWY_DYNAMIC_DISPATCH(AddFinite)(x, d, sum, skipped);
}

}  // namespace mpfa::rows
#endif
