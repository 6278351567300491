#include "cpu/softmax_ops.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/round_p.hpp"
#include "cpu/tile_ops.hpp"
#include "mpfa/attention.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

#include "cpu/exp2-inl.hpp"

constexpr float kNoKey = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kLanes = hn::MaxLanes(D());

/// e4m3 codes are linear in log2: code = 8 log2(p * scale) + 56, no exp2.
HWY_INLINE V round_loglin(V log2_p, float offset, float inverse) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V code = hn::Add(hn::Mul(hn::Set(d, 8.0F), log2_p), hn::Set(d, offset));
  const V magic = hn::Set(d, 0x1.8p23F);  // its lowest bits take the nearest integer
  const V shifted = hn::Add(hn::Min(hn::Max(code, hn::Zero(d)), hn::Set(d, 126.0F)), magic);
  const V nearest = hn::Sub(shifted, magic);
  const auto bits = hn::ShiftLeft<20>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 120 * 8)));
  const V subnormal = hn::Mul(nearest, hn::Set(d, 0x1p-9F));
  return hn::Mul(hn::IfThenElse(hn::Lt(nearest, hn::Set(d, 8.0F)), subnormal, hn::BitCast(d, bits)),
                 hn::Set(d, inverse));
}

/// Largest x of a row times `scale`, which is positive, NaN left out.
HWY_INLINE float row_top(const float* x, float scale) {
  const D d;
  V best = hn::Set(d, kNoKey);
  for (std::int64_t i = 0; i < kKeyTile; i += kLanes) {
    const V y = hn::LoadU(d, x + i);
#if HWY_ARCH_X86
    best = hn::Max(y, best);  // the second where one is a NaN
#else
    best = hn::IfThenElse(hn::Gt(y, best), y, best);
#endif
  }
  return hn::GetLane(hn::MaxOfLanes(d, best)) * scale;
}

/// One row to rounded probabilities; returns the denominator.
template <PMode kMode>
HWY_INLINE float round_row_of(const SoftmaxStep& step, float top, float offset, float* x) {
  const D d;
  const V scale = hn::Set(d, step.scale), p_scale = hn::Set(d, step.p_scale);
  const float inverse = 1.0F / step.p_scale;
  V sum = hn::Zero(d), log2_sum = hn::Zero(d);
  for (std::int64_t i = 0; i < kKeyTile; i += kLanes) {
    const V log2_p = hn::Sub(hn::Mul(hn::LoadU(d, x + i), scale), hn::Set(d, top));
    V exact = hn::Zero(d), rounded;
    if (kMode != PMode::e4m3_loglin || !step.same_codes) exact = Exp2(d, log2_p);
    if constexpr (kMode == PMode::f32) rounded = exact;
    if constexpr (kMode == PMode::bf16) rounded = DropMantissa<16>(exact);
    if constexpr (kMode == PMode::e4m3) rounded = RoundE4m3(exact, p_scale, hn::Set(d, inverse));
    if constexpr (kMode == PMode::e4m3_loglin) {
      rounded = round_loglin(log2_p, offset, inverse);
      log2_sum = hn::Add(log2_sum, log2_p);
    }
    hn::StoreU(rounded, d, x + i);
    sum = hn::Add(sum, step.same_codes ? rounded : exact);
  }
  if (kMode == PMode::e4m3_loglin && !hn::AllFalse(d, hn::IsNaN(log2_sum))) {
    // Codes have no NaN: without this a broken row would look healthy.
    std::fill_n(x, kKeyTile, std::numeric_limits<float>::quiet_NaN());
    return std::numeric_limits<float>::quiet_NaN();
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// Brings the maximum of a row to `top` where that is larger; returns the factor of what was summed so far.
HWY_INLINE float raise_top(float top, float& m) {
  const float before = m;
  m = std::max(m, top);
  if (m == before) return 1.0F;
  return before == kNoKey ? 0.0F : std::exp2(before - m);
}

#include "cpu/softmax_vectors-inl.hpp"

/// The maxima of all rows come first: exp2 of one row then does not wait for a reduction.
template <PMode kMode>
void softmax_of(const SoftmaxStep& step, std::int64_t rows, float* x, float* m, float* l, float* keep) {
  const float offset = kMode == PMode::e4m3_loglin ? 8.0F * std::log2(step.p_scale) + 56.0F : 0.0F;
  for (std::int64_t r = 0; r < rows; ++r) {
    keep[r] = raise_top(row_top(x + r * kKeyTile, step.scale), m[r]);
  }
  for (std::int64_t r = 0; r < rows; ++r, x += kKeyTile) {
    if (m[r] == kNoKey) {
      l[r] += without_maximum(x);
      std::fill_n(x, kKeyTile, 0.0F);
    } else {
      l[r] = l[r] * keep[r] + round_row_of<kMode>(step, m[r], offset, x);
    }
  }
}

void SoftmaxRows(const SoftmaxStep& step, std::int64_t rows, float* x, float* m, float* l, float* keep) {
  switch (step.mode) {
#if HWY_TARGET <= HWY_AVX3
    case PMode::f32: return softmax_vectors<PMode::f32>(step, rows, x, m, l, keep);
    case PMode::bf16: return softmax_vectors<PMode::bf16>(step, rows, x, m, l, keep);
#else
    case PMode::f32: return softmax_of<PMode::f32>(step, rows, x, m, l, keep);
    case PMode::bf16: return softmax_of<PMode::bf16>(step, rows, x, m, l, keep);
#endif
    case PMode::e4m3: return softmax_of<PMode::e4m3>(step, rows, x, m, l, keep);
    case PMode::e4m3_loglin: return softmax_of<PMode::e4m3_loglin>(step, rows, x, m, l, keep);
    default: return;
  }
}

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(SoftmaxRows);

/// Modes with blocks along the keys, or without a branch-free vector form.
void softmax_blocks(const SoftmaxStep& step, std::int64_t rows, float* x, float* m, float* l, float* keep) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  for (std::int64_t r = 0; r < rows; ++r, x += kKeyTile) {
    row_scale(x, step.scale, kKeyTile);
    const float top = std::max(m[r], row_max(x, kKeyTile));
    keep[r] = 1.0F;
    if (top == none) {
      l[r] += without_maximum(x);
      std::fill_n(x, kKeyTile, 0.0F);
      continue;
    }
    if (top != m[r]) keep[r] = m[r] == none ? 0.0F : std::exp2(m[r] - top);
    m[r] = top;
    l[r] = l[r] * keep[r] + round_row(step.mode, step.p_scale, top, step.same_codes, x);
  }
}

void softmax_rows(const SoftmaxStep& step, std::int64_t rows, float* x, float* m, float* l, float* keep) {
  switch (step.mode) {
    case PMode::f32:
    case PMode::bf16:
    case PMode::e4m3:
    case PMode::e4m3_loglin: return HWY_DYNAMIC_DISPATCH(SoftmaxRows)(step, rows, x, m, l, keep);
    default: return softmax_blocks(step, rows, x, m, l, keep);
  }
}

}  // namespace mpfa::cpu
#endif
