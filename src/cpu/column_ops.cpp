#include "cpu/column_ops.hpp"

#include <limits>

#include "cpu/tile_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/column_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kLaneMultiple>;

#include "cpu/exp2-inl.hpp"

void ColumnMax(std::int64_t keys, std::int64_t ld, float scale, float* x, float* m, float* keep) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto factor = hn::Set(d, scale);
  for (std::int64_t r = 0; r < ld; r += lanes) {
    const auto before = hn::LoadU(d, m + r);
    auto top = before;
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto v = hn::Mul(hn::LoadU(d, x + j * ld + r), factor);
      hn::StoreU(v, d, x + j * ld + r);
      top = hn::Max(top, hn::IfThenElse(hn::IsNaN(v), none, v));
    }
    const auto had_none = hn::Eq(before, none);
    const auto has_none = hn::Eq(top, none);
    const auto kept = hn::IfThenElseZero(hn::Not(had_none), Exp2(d, hn::Sub(before, top)));
    hn::StoreU(hn::IfThenElse(has_none, hn::Set(d, 1.0F), kept), d, keep + r);
    hn::StoreU(top, d, m + r);
  }
}

template <PMode kMode>
HWY_INLINE void ExpOf(float p_scale, bool same_codes, std::int64_t keys, std::int64_t ld, const float* m,
                      const float* keep, float* x, float* l) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto scale = hn::Set(d, p_scale);
  const auto inverse = hn::Set(d, 1.0F / p_scale);
  for (std::int64_t r = 0; r < ld; r += lanes) {
    const auto top = hn::LoadU(d, m + r);
    // A row without keys has nothing but -inf; any finite maximum makes zeros of it.
    const auto shift = hn::IfThenElse(hn::Eq(top, none), hn::Zero(d), top);
    auto exact = hn::Zero(d);
    auto codes = hn::Zero(d);
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto p = Exp2(d, hn::Sub(hn::LoadU(d, x + j * ld + r), shift));
      auto rounded = p;
      if constexpr (kMode == PMode::bf16) rounded = DropMantissa<16>(p);
      if constexpr (kMode == PMode::e4m3) rounded = RoundE4m3(p, scale, inverse);
      hn::StoreU(rounded, d, x + j * ld + r);
      exact = hn::Add(exact, p);
      codes = hn::Add(codes, rounded);
    }
    const auto sum = same_codes ? codes : exact;
    hn::StoreU(hn::MulAdd(hn::LoadU(d, l + r), hn::LoadU(d, keep + r), sum), d, l + r);
  }
}

void ColumnExp2(PMode mode, float p_scale, bool same_codes, std::int64_t keys, std::int64_t ld, const float* m,
                const float* keep, float* x, float* l) {
  if (mode == PMode::bf16) return ExpOf<PMode::bf16>(p_scale, same_codes, keys, ld, m, keep, x, l);
  if (mode == PMode::e4m3) return ExpOf<PMode::e4m3>(p_scale, same_codes, keys, ld, m, keep, x, l);
  ExpOf<PMode::f32>(p_scale, same_codes, keys, ld, m, keep, x, l);
}

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(ColumnMax);
HWY_EXPORT(ColumnExp2);

void column_max(std::int64_t keys, std::int64_t ld, float scale, float* x, float* m, float* keep) {
  HWY_DYNAMIC_DISPATCH(ColumnMax)(keys, ld, scale, x, m, keep);
}
void column_exp2(PMode mode, float p_scale, bool same_codes, std::int64_t keys, std::int64_t ld, const float* m,
                 const float* keep, float* x, float* l) {
  HWY_DYNAMIC_DISPATCH(ColumnExp2)(mode, p_scale, same_codes, keys, ld, m, keep, x, l);
}

}  // namespace mpfa::cpu
#endif
