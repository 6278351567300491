// exp2 and mantissa rounding in vectors; included once per instruction set, with `hn` and the tag D at hand.

/// 2^x for x <= 0 (and small positive x): 2^n times a polynomial on [-1/2, 1/2]. Below 2^-126 it is 0; NaN stays NaN.
template <class V>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto low = hn::Set(d, -126.0F);
  const auto clamped = hn::Max(x, low);
  // The sum with 1.5 * 2^23 has no fraction bits left; its lowest bits are the nearest integer.
  const auto magic = hn::Set(d, 0x1.8p23F);
  const auto shifted = hn::Add(clamped, magic);
  const auto f = hn::Sub(clamped, hn::Sub(shifted, magic));
  auto p = hn::Set(d, 1.5353362e-4F);
  p = hn::MulAdd(p, f, hn::Set(d, 1.3398874e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 9.6184370e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5503324e-2F));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022648e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314720e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 127))));
  // A NaN score stays a NaN: it must not look like a masked key.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElseZero(hn::Ge(x, low), hn::Mul(p, scale)));
}

/// To nearest, ties to even, with kDrop mantissa bits dropped; for finite values and NaN.
template <int kDrop>
HWY_INLINE hn::Vec<D> DropMantissa(hn::Vec<D> x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<kDrop>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, (1U << (kDrop - 1)) - 1U)), odd);
  const auto result = hn::BitCast(d, hn::And(rounded, hn::Set(du, ~((1U << kDrop) - 1U))));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

/// RN_e4m3(p * scale) / scale for p in [0, 1] and scale <= 448: nothing saturates.
HWY_INLINE hn::Vec<D> RoundE4m3(hn::Vec<D> p, hn::Vec<D> scale, hn::Vec<D> inverse) {
  const D d;
  const auto magic = hn::Set(d, 0x1.8p14F);  // adding it leaves multiples of 2^-9, the subnormal step
  const auto v = hn::Mul(p, scale);
  const auto subnormal = hn::Sub(hn::Add(v, magic), magic);
  return hn::Mul(hn::IfThenElse(hn::Lt(v, hn::Set(d, 0x1p-6F)), subnormal, DropMantissa<20>(v)), inverse);
}
