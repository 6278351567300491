// exp2 and mantissa rounding in vectors; included once per instruction set, with `hn` and the tag D at hand.

/// 2^x for x <= 0 (and small positive x): 2^n times a polynomial on [-1/2, 1/2], exactly 1 at 0, relative error below
/// 3e-7. Below 2^-126 it is 0; a NaN score stays a NaN: it must not look like a masked key.
template <class V>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(d, 0x1.8p23F + 127.0F);  // adding it leaves the exponent field of 2^n in the lowest bits
  const auto shifted = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::Set(d, 1.32695213e-3F);
  p = hn::MulAdd(p, f, hn::Set(d, 9.67129134e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55071086e-2F));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40222469e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93147004e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0F)), hn::Mul(p, scale));
}

/// The power of two below v >= 0, of a NaN an Inf.
HWY_INLINE hn::Vec<D> Binade(hn::Vec<D> v) {
  const D d;
  return hn::And(v, hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7F800000U)));
}

/// v to the nearest multiple of 2^-(23 - kDrop) * binade, ties to even: what the sum keeps has no bits below that.
template <int kDrop>
HWY_INLINE hn::Vec<D> NearestIn(hn::Vec<D> v, hn::Vec<D> binade) {
  const D d;
  const auto magic = hn::Mul(binade, hn::Set(d, 1.5F * static_cast<float>(1 << kDrop)));
  return hn::Sub(hn::Add(v, magic), magic);
}

/// p in [0, 1] or NaN to nearest, ties to even, with kDrop mantissa bits dropped; no subnormals.
template <int kDrop>
HWY_INLINE hn::Vec<D> DropMantissa(hn::Vec<D> p) {
  return NearestIn<kDrop>(p, Binade(p));
}

/// RN_e4m3(p * scale) / scale for p in [0, 1] or NaN and scale <= 448: nothing saturates.
HWY_INLINE hn::Vec<D> RoundE4m3(hn::Vec<D> p, hn::Vec<D> scale, hn::Vec<D> inverse) {
  const D d;
  const auto v = hn::Mul(p, scale);
  // Below 2^-6 the step stays that of 2^-6.
  return hn::Mul(NearestIn<20>(v, hn::Max(Binade(v), hn::Set(d, 0x1p-6F))), inverse);
}
