// What happens to every channel of a row by itself.
#include "cache/row_ops.hpp"

#include <cmath>

#include "cache/convert.hpp"

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
