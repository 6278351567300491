// What mixes the channels of a row: rank-one terms, the Hadamard matrix and RoPE.
#include <cmath>

#include "cache/hadamard.hpp"
#include "cache/rank_one.hpp"
#include "cache/row_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cache/row_mixing.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::rows::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
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
#else
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, formats::kRowMultiple>;
using DU = hn::RebindToUnsigned<D>;
using VF = hn::Vec<D>;

constexpr std::int64_t kLanes = hn::MaxLanes(D());

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
#endif

}  // namespace mpfa::rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::rows {

HWY_EXPORT(RankOne);
HWY_EXPORT(Hadamard);
HWY_EXPORT(RotateHalves);
HWY_EXPORT(RotatePairs);

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

}  // namespace mpfa::rows
#endif
