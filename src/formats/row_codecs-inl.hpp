// Element codecs of elements.hpp in vectors: the same bits, lane by lane. Included inside the namespace of a target
// that has defined hn and the tag D.

using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using VF = hn::Vec<D>;
using VU = hn::Vec<DU>;

/// A code per lane, and all ones where the value exceeded the element's largest magnitude.
struct Codes {
  VU bits;
  VU saturated;
};

/// Compares of values below 2^31, which every instruction set does as signed ones.
HWY_INLINE VU above(VU a, std::uint32_t b) {
  const DI di;
  const DU du;
  return hn::BitCast(du, hn::VecFromMask(di, hn::Gt(hn::BitCast(di, a), hn::Set(di, static_cast<std::int32_t>(b)))));
}
HWY_INLINE VU choose(VU mask, VU yes, VU no) {
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
}
template <int kShift>
HWY_INLINE VU round_shift_lanes(VU v) {
  const DU du;
  const VU odd = hn::And(hn::ShiftRight<kShift>(v), hn::Set(du, 1U));
  return hn::ShiftRight<kShift>(hn::Add(hn::Add(v, hn::Set(du, (1U << (kShift - 1)) - 1U)), odd));
}

template <class Codec>
struct LaneCodec {
  static constexpr bool kExists = false;
};

template <int kExp, int kMan, int kBias, std::uint32_t kMax, std::uint32_t kInf, std::uint32_t kNan>
struct LaneCodec<MiniFloat<kExp, kMan, kBias, kMax, kInf, kNan>> {
  static constexpr bool kExists = true;

  static HWY_INLINE Codes encode(VF v) {
    const D d;
    const DU du;
    constexpr float kMagic = power_of_two(24 - kBias - kMan);
    const VU abs = hn::And(hn::BitCast(du, v), hn::Set(du, kFloatAbs));
    const VU sign =
        hn::And(hn::ShiftRight<31 - kExp - kMan>(hn::BitCast(du, v)), hn::Set(du, std::uint32_t{1} << (kExp + kMan)));
    const VU normal =
        round_shift_lanes<23 - kMan>(hn::Sub(abs, hn::Set(du, static_cast<std::uint32_t>(127 - kBias) << 23)));
    const VU subnormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, abs), hn::Set(d, kMagic))), hn::Set(du, float_bits(kMagic)));
    const VU code = choose(above(abs, (static_cast<std::uint32_t>(128 - kBias) << 23) - 1U), normal, subnormal);
    const VU nan = above(abs, kFloatInf);
    const VU over = above(code, kMax);
    const VU held = hn::Or(sign, choose(over, hn::Set(du, kMax), code));
    return {choose(nan, hn::Set(du, kNan), held), hn::AndNot(nan, over)};
  }
};

template <>
struct LaneCodec<F16> {
  static constexpr bool kExists = true;
  static HWY_INLINE Codes encode(VF v) {
    const DU du;
    const Codes finite = LaneCodec<F16::Base>::encode(v);
    const VU abs = hn::And(hn::BitCast(du, v), hn::Set(du, kFloatAbs));
    const VU special = above(abs, kFloatInf - 1U);
    const VU sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du, v)), hn::Set(du, 0x8000U));
    const VU kept = hn::Or(sign, choose(above(abs, kFloatInf), hn::Set(du, 0x7E00U), hn::Set(du, 0x7C00U)));
    return {choose(special, kept, finite.bits), hn::AndNot(special, finite.saturated)};
  }
};

template <>
struct LaneCodec<Bf16> {
  static constexpr bool kExists = true;
  static HWY_INLINE Codes encode(VF v) {
    const DU du;
    const VU abs = hn::And(hn::BitCast(du, v), hn::Set(du, kFloatAbs));
    const VU sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du, v)), hn::Set(du, 0x8000U));
    const VU special = above(abs, kFloatInf - 1U);
    const VU code = round_shift_lanes<16>(abs);
    const VU over = hn::AndNot(special, above(code, 0x7F7FU));
    const VU finite = choose(over, hn::Set(du, 0x7F7FU), code);
    const VU kept = choose(above(abs, kFloatInf), hn::Set(du, 0x7FC0U), hn::Set(du, 0x7F80U));
    return {hn::Or(sign, choose(special, kept, finite)), over};
  }
};

template <>
struct LaneCodec<F32> {
  static constexpr bool kExists = true;
  static HWY_INLINE Codes encode(VF v) { return {hn::BitCast(DU(), v), hn::Zero(DU())}; }
};

template <int kBitCount, int kLow, int kHigh>
struct LaneCodec<Integer<kBitCount, kLow, kHigh>> {
  static constexpr bool kExists = true;
  static HWY_INLINE Codes encode(VF v) {
    const D d;
    const DU du;
    const DI di;
    const VF magic = hn::Set(d, 12582912.0F);
    const VF limited = hn::Max(hn::Min(v, hn::Set(d, kHigh + 1.0F)), hn::Set(d, kLow - 1.0F));
    const auto n = hn::ConvertTo(di, hn::Sub(hn::Add(limited, magic), magic));
    const auto held = hn::Max(hn::Min(n, hn::Set(di, kHigh)), hn::Set(di, kLow));
    const auto same = hn::BitCast(du, hn::VecFromMask(di, hn::Eq(n, held)));
    return {hn::And(hn::BitCast(du, held), hn::Set(du, (1U << kBitCount) - 1U)), hn::Not(same)};
  }
};

/// The codes of consecutive elements, two to a byte where they have 4 bits.
template <int kBits>
HWY_INLINE void store_codes(VU codes, std::byte* to) {
  const DU du;
  if constexpr (kBits == 32) {
    hn::StoreU(codes, du, reinterpret_cast<std::uint32_t*>(to));
  } else if constexpr (kBits == 16) {
    const hn::Rebind<std::uint16_t, DU> narrow;
    hn::StoreU(hn::TruncateTo(narrow, codes), narrow, reinterpret_cast<std::uint16_t*>(to));
  } else if constexpr (kBits == 8) {
    // Not TruncateTo: to bytes it keeps every fourth lane only on AVX3_DL in Highway 1.0.3.
    const hn::Rebind<std::uint8_t, DU> narrow;
    hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(DI(), codes)), narrow, reinterpret_cast<std::uint8_t*>(to));
  } else {
    const hn::Repartition<std::uint64_t, DU> pairs;
    const hn::Rebind<std::uint8_t, decltype(pairs)> narrow;
    const auto pair = hn::BitCast(pairs, codes);
    hn::StoreU(hn::TruncateTo(narrow, hn::Or(pair, hn::ShiftRight<28>(pair))), narrow,
               reinterpret_cast<std::uint8_t*>(to));
  }
}
