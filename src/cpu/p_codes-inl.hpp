// Rounding of P in vectors, query rows along the lanes; the rules are those of attention/probabilities.cpp. Included
// once per instruction set, with `hn`, the tag D, its vector V and exp2-inl.hpp at hand.

/// RN_e2m1(v) for v >= 0, saturating at 6: steps of 1/2 below 2, 1 below 4, 2 above.
HWY_INLINE V NearestE2m1(V v) {
  const D d;
  const auto capped = hn::Min(v, hn::Set(d, 6.0F));
  return NearestIn<22>(capped, hn::Max(Binade(capped), hn::Set(d, 1.0F)));
}

/// e4m3 codes are linear in log2: code = 8 log2(p * scale) + 56, no exp2.
HWY_INLINE V LogLinear(V log2_p, V offset, V inverse) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(d, 0x1.8p23F);
  const auto line = hn::MulAdd(log2_p, hn::Set(d, 8.0F), offset);
  const auto shifted = hn::Add(hn::Clamp(line, hn::Zero(d), hn::Set(d, 126.0F)), magic);
  const auto code = hn::Sub(shifted, magic);
  const auto field = hn::Add(hn::BitCast(du, shifted), hn::Set(du, 120U * 8U));
  const auto normal = hn::BitCast(d, hn::ShiftLeft<20>(field));
  const auto subnormal = hn::Mul(code, hn::Set(d, 0x1p-9F));
  const auto p = hn::Mul(hn::IfThenElse(hn::Lt(code, hn::Set(d, 8.0F)), subnormal, normal), inverse);
  return hn::IfThenElse(hn::IsNaN(log2_p), log2_p, p);
}

/// The largest of n values, `stride` floats apart.
HWY_INLINE V LargestOf(int n, const float* x, std::int64_t stride) {
  V top = hn::LoadU(D(), x);
  for (int i = 1; i < n; ++i) top = hn::Max(top, hn::LoadU(D(), x + i * stride));
  return top;
}

/// 16 keys under an e4m3 scale that sends their maximum to 6, or to 2 when it is small (underflow_rule); with kLifted
/// they are divided by `lift` before and multiplied by it after. Returns the sum of the rounded.
template <bool kLifted>
HWY_INLINE V RoundNvfp4(float* x, std::int64_t stride, V lift, bool underflow_rule) {
  const D d;
  const auto one = hn::Set(d, 1.0F);
  V amax = LargestOf(16, x, stride);
  if constexpr (kLifted) amax = hn::Div(amax, lift);
  V target = hn::Set(d, 6.0F);
  if (underflow_rule) target = hn::IfThenElse(hn::Le(amax, hn::Set(d, 21.0F / 1024.0F)), hn::Set(d, 2.0F), target);
  const auto scale = RoundE4m3(hn::Div(amax, target), one, one);
  const auto empty = hn::Eq(scale, hn::Zero(d));
  V sum = hn::Zero(d);
  for (int i = 0; i < 16; ++i) {
    V p = hn::LoadU(d, x + i * stride);
    if constexpr (kLifted) p = hn::Div(p, lift);
    V rounded = hn::IfThenZeroElse(empty, hn::Mul(NearestE2m1(hn::Div(p, scale)), scale));
    if constexpr (kLifted) rounded = hn::Mul(rounded, lift);
    hn::StoreU(rounded, d, x + i * stride);
    sum = hn::Add(sum, rounded);
  }
  return sum;
}

/// 32 keys under the power of two of the format mxfp4, 2^ceil(log2(amax / 7.25)).
HWY_INLINE V RoundMxfp4(float* x, std::int64_t stride) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  // 7.25 = 1.8125 * 4: a larger mantissa carries into the exponent field.
  const auto bits = hn::Add(hn::BitCast(du, LargestOf(32, x, stride)), hn::Set(du, 0x7FFFFFU - 0x680000U));
  const auto exponent = hn::Sub(hn::Max(hn::ShiftRight<23>(bits), hn::Set(du, 3U)), hn::Set(du, 2U));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  const auto inverse = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(hn::Set(du, 254U), exponent)));
  V sum = hn::Zero(d);
  for (int i = 0; i < 32; ++i) {
    const auto rounded = hn::Mul(NearestE2m1(hn::Mul(hn::LoadU(d, x + i * stride), inverse)), scale);
    hn::StoreU(rounded, d, x + i * stride);
    sum = hn::Add(sum, rounded);
  }
  return sum;
}

/// 2^e for whole e <= 0, subnormal results included.
HWY_INLINE V PowerOfTwo(V e) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto whole = hn::ConvertTo(di, hn::Max(e, hn::Set(d, -252.0F)));
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(di, 127);
  const auto first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  return hn::Mul(first, hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias))));
}

/// 32 keys given as log2 p: the e2m1 code is read off a line, for every fourth key of `accurate` off exp2.
HWY_INLINE V RoundDirect(bool accurate, float* x, std::int64_t stride) {
  const D d;
  const auto top = LargestOf(32, x, stride);
  const auto empty = hn::Eq(top, hn::Set(d, -std::numeric_limits<float>::infinity()));
  const auto exponent = hn::Ceil(top);
  const auto unit = hn::IfThenZeroElse(empty, hn::Div(PowerOfTwo(exponent), hn::Set(d, 6.0F)));
  V sum = hn::Zero(d);
  for (int i = 0; i < 32; ++i) {
    const auto y = hn::Add(hn::Sub(hn::LoadU(d, x + i * stride), exponent), hn::Set(d, 2.5849625F));
    const auto line = hn::Add(hn::Mul(y, hn::Set(d, 1.5F)), hn::Set(d, 1.2F));
    const auto v = accurate && i % 4 == 0 ? Exp2(d, y) : hn::Max(line, hn::Zero(d));
    const auto rounded = hn::IfThenZeroElse(empty, hn::Mul(NearestE2m1(v), unit));
    hn::StoreU(rounded, d, x + i * stride);
    sum = hn::Add(sum, rounded);
  }
  return sum;
}
